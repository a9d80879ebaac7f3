"""What transformers makes of requests to encoder-decoders: for the contract's oracle.

Nothing of the adapter is used here: a prompt's tokens and outputs are made by processor, model and `generate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from transformers import GenerationMixin, LogitsProcessor

from corellm_testing.reference import Continuation, Media, Reference, masked_token_ids


def inputs_of(reference: Reference, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item's tensors, and `input_ids`: a token of padding for each of its states, and the text's tokens.

    Raises:
        ValueError: there is no item.
    """
    tensors, tokens = _tensors(reference, media, kwargs), _tokens(reference, text)
    stand_in = [reference.processor.tokenizer.pad_token_id] * _num_states(reference.model, tensors)
    return {**tensors, "input_ids": torch.tensor([[*stand_in, *tokens]])}


def continuation_of(
    reference: Reference, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int
) -> Continuation:
    """Return the greedy output for an item, of exactly `max_tokens` tokens: `generate` after what it begins with."""
    model, inputs = reference.model, inputs_of(reference, text, media, kwargs)
    tensors = {name: value for name, value in inputs.items() if name != "input_ids"}
    settings: dict[str, Any] = {"max_new_tokens": max_tokens + 2, "do_sample": False}
    ends = _ends(reference)
    watch = _Watch(ends)
    model.generate(**tensors, **settings, logits_processor=[watch])
    tokens = _tokens(reference, text)
    if tokens:  # Whisper's own `generate` takes no text of the decoder's
        settings["decoder_input_ids"] = torch.tensor([watch.beginning + tokens])
        watch = _Watch(ends)
        GenerationMixin.generate(model, **tensors, **settings, logits_processor=[watch])
    return watch.continuation(inputs["input_ids"][0].tolist(), max_tokens)


def _ends(reference: Reference) -> list[int]:
    """Return the tokens that end a text: those of the loaded model under test, else of the checkpoint."""
    stated = reference.model.generation_config.eos_token_id
    known = stated if isinstance(stated, list) else [stated]
    return sorted(reference.end_token_ids or {token for token in known if token is not None})


def _num_states(model: Any, tensors: Mapping[str, Any]) -> int:
    """Return how many states the decoder is given."""
    seen: list[int] = []

    def note(_: Any, places: Any, arguments: Mapping[str, Any]) -> None:
        states, mask = arguments["encoder_hidden_states"], arguments.get("encoder_attention_mask")
        seen.append(states.shape[1] if mask is None else int(mask.sum()))

    handle = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    model.generate(**tensors, max_new_tokens=1)
    handle.remove()
    return seen[0]


def _tensors(reference: Reference, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    ((modality, (item,)),) = media.items()
    given: dict[str, Any] = {"image": {"images": item}}.get(modality, {"audio": item})
    if modality == "audio":
        given["sampling_rate"] = reference.processor.feature_extractor.sampling_rate
    if "language" in signature(reference.processor.__call__).parameters:  # for the decoder's tokens, left out below
        given["language"] = "en"
    output = reference.processor(**given, **kwargs, return_tensors="pt")
    return {name: value for name, value in output.items() if name not in ("decoder_input_ids", "audio_chunk_index")}


def _tokens(reference: Reference, text: str) -> list[int]:
    return list(reference.processor.tokenizer(text, add_special_tokens=False)["input_ids"])


class _Watch(LogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """Comes after all other processors of logits: notes a step's tokens and scores, and lets no text end.

    Args:
        ends: tokens that end a text.
    """

    def __init__(self, ends: list[int]) -> None:
        self._ends = ends
        self._inputs: list[list[int]] = []
        self._scores: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Note a step; the best token that ends no text is chosen."""
        self._inputs.append(input_ids[0].tolist())
        self._scores.append(scores.clone())
        going_on = scores.index_fill(-1, torch.tensor(self._ends), -torch.inf)
        return torch.full_like(scores, -torch.inf).scatter(-1, going_on.argmax(-1, keepdim=True), 0.0)

    @property
    def _start(self) -> int:
        """The first step in which there is a choice: tokens that are forced belong to what comes before the output."""
        return next(i for i, scores in enumerate(self._scores) if int((scores != -torch.inf).sum()) > 1)

    @property
    def beginning(self) -> list[int]:
        """The decoder's tokens before the first that is chosen."""
        return self._inputs[self._start]

    def continuation(self, prompt: list[int], max_tokens: int) -> Continuation:
        """Return the tokens that were chosen, with their log-probabilities among all that were not suppressed."""
        steps = self._scores[self._start : self._start + max_tokens]
        tokens = self._inputs[self._start + max_tokens][len(self.beginning) :]
        pairs = zip(steps, tokens, strict=True)
        logprobs = [torch.log_softmax(step[0].float(), -1)[token].item() for step, token in pairs]
        return Continuation(prompt, tokens, logprobs, frozenset(self._ends), masked_token_ids(torch.cat(steps)))

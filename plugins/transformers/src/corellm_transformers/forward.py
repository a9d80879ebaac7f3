"""The model's own forward pass up to its decoder: what of it the engine takes, and what it is compared with at load.

Knows models of transformers by what they take and give; knows no model family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError
from corellm.modelling import DecoderInputs, Front

if TYPE_CHECKING:
    from corellm_transformers.family import Family

_TYPES = {"image": 1, "video": 2, "audio": 3}
"""Of tokens, in `mm_token_type_ids`."""
_SMALL_DIFFERENCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class Forward:
    """A loaded model, up to its decoder.

    Args:
        model: the whole model.
        decoder: the decoder inside it.
        family: what its processor says.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module, family: Family) -> None:
        self._model, self._family = model, family
        self._front = Front(model, decoder)
        self._takes = signature(model.forward).parameters
        self._embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
        self._device = self._embedding.weight.device

    # --- items ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def embed(self, modality: str, tokens: Tensor, tensors: Mapping[str, Any]) -> Tensor:
        """Return an item's embeddings: what the forward pass of the item's tokens alone puts in their places.

        Args:
            modality: of the item.
            tokens: those in its place, `[num_tokens]`.
            tensors: the processor's for this item alone.

        Returns:
            `[num_embeds, hidden_size]`.
        """
        given = self._run(tokens, tensors)
        return given.embeds[0][self._takes_embeddings(modality, tokens)]

    def _takes_embeddings(self, modality: str, tokens: Tensor) -> Tensor:
        """Which of an item's tokens take embeddings, `[num_tokens]`."""
        wanted = torch.tensor(sorted(self._family.modalities[modality].embed_token_ids), device=tokens.device)
        return torch.isin(tokens, wanted)

    def _run(self, tokens: Tensor, tensors: Mapping[str, Any]) -> DecoderInputs:
        inputs: dict[str, Any] = {"input_ids": tokens[None], "attention_mask": torch.ones_like(tokens)[None], **tensors}
        if "mm_token_type_ids" in self._takes:
            inputs["mm_token_type_ids"] = self.token_types(tokens)[None]
        return self._front(**inputs)

    def token_types(self, tokens: Tensor) -> Tensor:
        """Return 0 for text, and a number for each modality, `[num_tokens]`."""
        types = torch.zeros_like(tokens)
        for modality in self._family.modalities:
            types[self._takes_embeddings(modality, tokens)] = _TYPES[modality]
        return types

    # --- at load ----------------------------------------------------------------------------------------------------

    def refuse(self, reason: str) -> NoReturn:
        """Raise that the engine would compute something else than the model."""
        raise CheckpointError(
            f"{type(self._model).__name__} {reason}; this architecture needs a plugin of its own, or run the checkpoint "
            f"with transformers' own generate"
        )

    @torch.inference_mode()
    def check(self) -> None:
        """Compare the forward pass of prompts with items with what the engine will do.

        Raises:
            CheckpointError: they differ; says in what.
        """
        for modality in self._family.modalities:
            self._check_modality(modality)

    def _check_modality(self, modality: str) -> None:
        items = [self._family.small(modality, seed) for seed in (0, 1)]
        known, tokenizer = self._family.modalities[modality], self._family.context.tokenizer
        parts = [self._family.process(modality, item, {}) for item in items]
        text = f"one {known.text} two {known.text} three"
        from corellm_transformers.placeholders import ARGUMENT

        media: dict[str, Any] = {ARGUMENT[modality]: items}
        if modality == "audio":
            media["sampling_rate"] = self._family.sampling_rate
        joint = dict(self._family.processor(text=text, return_tensors="pt", **media))
        tokens = joint["input_ids"][0]
        ours, left = list[int](), [part[1].tolist() for part in parts]
        bare = list(tokenizer(text)["input_ids"])
        target, at = list(known.target), 0
        spans = []
        while at < len(bare):
            if left and bare[at : at + len(target)] == target:
                spans.append((len(ours), len(ours) + len(left[0])))
                ours += left.pop(0)
                at += len(target)
            else:
                ours.append(bare[at])
                at += 1
        if ours != tokens.tolist():
            self.refuse(f"has a processor that places several {modality}s otherwise than each: {tokens.tolist()} for {ours}")
        from corellm_transformers.family import _TEXT

        def ready(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: self._ready(value) for name, value in values.items() if name not in _TEXT}

        ids = tokens.to(self._device)
        theirs = self._run(ids, ready(joint))
        embeds = self._embedding(ids)
        for (start, end), (tensors, own) in zip(spans, parts, strict=True):
            span = embeds[start:end]
            span[self._takes_embeddings(modality, own.to(self._device))] = self.embed(
                modality, own.to(self._device), ready(tensors)
            )
        error = (theirs.embeds[0] - embeds).abs().max().item()
        scale = theirs.embeds.abs().max().item()
        if not error <= _SMALL_DIFFERENCE[embeds.dtype] * scale:
            self.refuse(f"merges {modality}s otherwise than one by one: embeddings differ by {error:.3g} of {scale:.3g}")
        if theirs.more:
            self.refuse(f"gives its decoder {', '.join(sorted(theirs.more))} beside embeddings")
        if theirs.positions is not None:
            count = torch.arange(len(ids), device=self._device)
            if not bool((theirs.positions == count).all()):
                self.refuse("gives its decoder positions that do not count tokens")

    def _ready(self, value: Any) -> Any:
        """A processor's tensor where the model is, in its type."""
        if isinstance(value, Tensor):
            dtype = self._embedding.weight.dtype if value.is_floating_point() else value.dtype
            return value.to(self._device, dtype)
        return value

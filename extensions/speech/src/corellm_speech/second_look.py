"""A second look at a window whose text is known: the decoder runs once more on it, by transformers' plain attention.

It gives what the engine's steps do not: how strongly tokens attend to the window's audio, how likely the text is among
what the order of times allows, and how likely it is that nobody speaks. `look` is called in the engine, between two
steps (`LLM.in_engine`), with plain data. Knows transformers' decoders by what they take and give; knows no seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from corellm.errors import InvalidParameterError
from corellm.hookspecs import SpokenTimes
from corellm.modelling import text_decoder
from corellm.modelling.decoder_attention import attention_configs, set_attention
from corellm.multimodal import MultiModalFeature, MultiModalKwargsItem, PlaceholderRange
from corellm.multimodal.fields import MultiModalField, MultiModalFieldElem
from corellm_decoding import SequenceTokens
from corellm_speech.time_order import TimeOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corellm.engine.llm_engine import LLMEngine
    from corellm.serving import ProcessedPrompt
    from corellm.worker.model_runner import ModelRunner

EngineCall = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module and its arguments behind the engine, for `in_engine`."""


@dataclass(frozen=True)
class Seen:
    """What a second look gives."""

    mean_logprob: float
    """Mean log-probability of the output's tokens, among those that the order of times allows."""
    no_speech: float
    """Probability that nobody speaks; 0 where the model has no token for that."""
    rows: NDArray[np.float32]
    """How strongly tokens attend to each step of the window, `[num_tokens - 1, num_steps]`, of all but the last; of no
    steps where the model does not tell."""

    @classmethod
    def of(cls, result: Sequence[Any], num_tokens: int) -> Seen:
        """Return what `look` returned for an output of so many tokens."""
        mean_logprob, no_speech, num_steps, rows = result
        return cls(mean_logprob, no_speech, np.frombuffer(rows, np.float32).reshape(num_tokens - 1, num_steps))


def call_for(
    times: SpokenTimes, prompt: ProcessedPrompt, output: Sequence[int], *, start: int, num_steps: int
) -> EngineCall:
    """Return what takes a second look at a window.

    Args:
        times: of the model's family.
        prompt: that asked for the window's text.
        output: its tokens.
        start: place in the decoder's prompt of the token that begins a text.
        num_steps: of the window's own audio; 0 not to ask for attention.

    Raises:
        InvalidParameterError: the request had more than audio, as an adapter of its own, which a second look has not.
    """
    if prompt.extra:
        raise InvalidParameterError(
            f"word_timestamps and thresholds are for the model alone, without {', '.join(sorted(prompt.extra))}"
        )
    (feature,) = prompt.features
    asked = {
        "item": [feature.identifier, feature.placeholder.num_embeds],
        "tensors": {name: _plain(elem) for name, elem in feature.data.items()},
        "prompt": prompt.own_token_ids,
        "output": list(output),
        "start": start,
        "rules": {name: getattr(times, name) for name in ("zero", "without", "end", "most_first")},
        "no_speech": times.no_speech,
        "heads": [list(pair) for pair in times.heads] if num_steps else [],
        "num_steps": num_steps,
        "smoothing": times.smoothing,
    }
    return look, (asked,)


def _plain(elem: MultiModalFieldElem) -> list[Any]:
    field, tensor = elem.field, elem.data
    kind = str(tensor.dtype).removeprefix("torch.")
    return [field.modality, field.kind, field.dim, kind, list(tensor.shape), tensor.contiguous().numpy().tobytes()]


@torch.inference_mode()
def look(engine: LLMEngine, asked: Mapping[str, Any]) -> list[Any]:
    """Return the fields of a `Seen`, its rows as their width and bytes; `asked` is of `call_for`."""
    engine.require_awake()
    runner, prompt, output = engine.runner, asked["prompt"], asked["output"]
    decoder = text_decoder(runner.model, runner.model.config)
    tokens = torch.tensor([[*prompt, *output[:-1]]], device=runner.device)
    states = _states(runner, asked["item"], asked["tensors"])[None]
    with _attention_to_states(decoder, asked["heads"]) as noted:
        hidden: Tensor = decoder(input_ids=tokens, encoder_hidden_states=states, use_cache=False)[0][0]
    rows = np.zeros((len(output) - 1, 0), np.float32)
    if noted and len(output) > 1:
        weights = torch.cat([noted[layer] for layer in sorted(noted)])[:, len(prompt) :, : asked["num_steps"]]
        rows = _smoothed(weights.float(), asked["smoothing"]).cpu().numpy()
    return [
        _mean_logprob(runner, hidden[len(prompt) - 1 :], output, TimeOrder(**asked["rules"])),
        _no_speech(runner, hidden[asked["start"]], asked["no_speech"]),
        rows.shape[1],
        rows.tobytes(),
    ]


def _states(runner: ModelRunner, item: Sequence[Any], tensors: Mapping[str, Sequence[Any]]) -> Tensor:
    """Return an item's states, `[num_states, hidden_size]`: those that the window's request left, else made again.

    Raises:
        CorellmError: they cannot be made.
    """
    identifier, num_states = item
    elems = {
        name: MultiModalFieldElem(
            MultiModalField(modality, layout, dim),
            torch.frombuffer(bytearray(data), dtype=getattr(torch, kind)).view(shape),
        )
        for name, (modality, layout, dim, kind, shape, data) in tensors.items()
    }
    place = PlaceholderRange(0, num_states)
    feature = MultiModalFeature("audio", 0, identifier, place, MultiModalKwargsItem(elems))
    if feature in runner.encoders:
        return runner.encoders.output(feature)
    runner.encoders.run([feature])
    try:
        return runner.encoders.output(feature)
    finally:
        runner.encoders.drop([identifier])


@contextmanager
def _attention_to_states(decoder: nn.Module, heads: Sequence[Sequence[int]]) -> Iterator[dict[int, Tensor]]:
    """Within the block a decoder runs without the engine; yields weights of heads by layer, as they come.

    They are `[num_heads, num_tokens, num_states]`.
    """
    noted: dict[int, Tensor] = {}

    def note(layer: int, attention: nn.Module, arguments: Any, output: Any) -> None:
        noted[layer] = output[1][0, [head for at, head in heads if at == layer]]

    layers = next(part for part in decoder.children() if isinstance(part, nn.ModuleList))
    configs = [(config, config._attn_implementation) for config in attention_configs(decoder)]
    with ExitStack() as undo:
        for config, before in configs:
            undo.callback(set_attention, config, before)
            set_attention(config, "eager")
        for layer in {layer for layer, _ in heads}:
            _, to_states = (part for part in layers[layer].children() if hasattr(part, "layer_idx"))
            undo.callback(to_states.register_forward_hook(partial(note, layer)).remove)
        yield noted


def _smoothed(weights: Tensor, width: int) -> Tensor:
    """Return attention as transformers' `generate` compares it, `[num_tokens, num_steps]`.

    Args:
        weights: `[num_heads, num_tokens, num_steps]`.
        width: of the median, over steps.
    """
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights, half = (weights - mean) / std, width // 2
    if weights.shape[-1] > half:
        padded = nn.functional.pad(weights, (half, half), mode="reflect")
        weights = padded.unfold(-1, width, 1).sort().values[..., half]
    return weights.mean(dim=0)


def _mean_logprob(runner: ModelRunner, hidden: Tensor, output: Sequence[int], order: TimeOrder) -> float:
    """Return the mean log-probability of an output's tokens; `hidden` are the states that chose them."""
    logits = runner.hooks.compute_logits(model=runner.model, hidden_states=hidden).float()
    ordered = order(logits, [SequenceTokens((), output[:at]) for at in range(len(output))])
    chosen = torch.tensor(output, device=logits.device)[:, None]
    return float(ordered.log_softmax(dim=-1).gather(1, chosen).sum() / len(output))


def _no_speech(runner: Any, hidden: Tensor, token: int | None) -> float:
    """Return the probability of the token that says so, also where outputs never have it."""
    if token is None:
        return 0.0
    logits: Tensor = runner.model.get_output_embeddings()(hidden[None])[0]
    return float(logits.float().softmax(dim=-1)[token])

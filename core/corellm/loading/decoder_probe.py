"""What a model asks of attention, found at load by running a few tokens through its text decoder.

What the engine does not compute is refused here, with the reason, so that a step need not look: masks that are not
causal within a window, arguments of attention that change its result, layers that do not attend through the engine.
Where an item's tokens see each other, the model around the decoder says so: `two_way` asks it.
Meanwhile the decoder's attention has another name, under which transformers states masks as functions. Knows
transformers' attention and mask functions; knows no model family.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from corellm.attention.distance_bias import DistanceBias
from corellm.attention.paged import ATTENTION_NAME, not_paged
from corellm.errors import CheckpointError, ContractError, CorellmError, raised_at
from corellm.modelling.decoder_attention import recorded_attention
from corellm.modelling.layer_inputs import rows_width
from corellm.worker.kv_cache import LayerLayout

logger = logging.getLogger(__name__)

_PROBE_NAME = "corellm_probe"
_NUM_TOKENS = 2
SAME = 1e-2
"""The difference, relative to the largest number, that rounding may make in bfloat16."""
_HARMLESS = frozenset(
    {"dropout", "is_causal", "position_ids", "cache_position", "position_embeddings", "use_cache", "deterministic"}
    | {"output_attentions", "output_hidden_states", "output_router_logits", "return_dict"}
)
"""Arguments of attention functions that change no result, or are looked at."""
_POINTWISE = ("mlp", "moe")
"""Types of layers, as configurations name them, that keep nothing."""
_FORGETTING = "reference_sliding_attention"
"""One that sees the whole prompt, and of what was generated the last tokens."""


@dataclass(frozen=True)
class StatedMask:
    """A mask as transformers states it."""

    sees: Callable[..., Any]
    """From batch, head, query and key to whether the query sees the key; takes tensors of indices."""

    def __getitem__(self, cut: tuple[Any, ...]) -> StatedMask:
        """Return itself where all of it is cut out: decoders do that may skip tokens, but are not asked to (Gemma 4).

        Raises:
            TypeError: a part is cut out.
        """
        if not all(isinstance(part, slice) and part.indices(_NUM_TOKENS) == (0, _NUM_TOKENS, 1) for part in cut):
            raise TypeError("it takes a mask apart, which is stated as a function")
        return self


class DecoderProbe:
    """Gets what layers pass to attention.

    Args:
        decoder: its class, or that of the model around it, for messages.
        max_len: positions that masks are looked at for.
        softcaps, sinks, biases: whether the attention backend caps scores, and adds sinks and biases of distances.
        device: of the decoder.
    """

    def __init__(
        self, decoder: str, max_len: int, softcaps: bool, sinks: bool, biases: bool, device: torch.device
    ) -> None:
        self.layers: dict[int, LayerLayout] = {}
        self._keys_of: dict[int, Tensor] = {}
        self._rows: list[Tensor] = []
        """What layers pass to attention, of the last pass: `[..., num_tokens, head_size]`."""
        self._told: list[Tensor] = []
        """These rows of the pass that `run` returns, and its hidden states."""
        self.decoder, self._softcaps, self._sinks, self._biases = decoder, softcaps, sinks, biases
        self._causal: set[tuple[StatedMask, int | None]] = set()
        """Masks that are causal within a window; most layers share one."""
        positions = torch.arange(max_len, device=device)
        self._keys = positions[None]
        self._queries = positions.flip(0)[:: max(1, max_len // 64), None]  # some, the last one among them

    def refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        """Raise that the engine cannot run the decoder."""
        way_out = "run this checkpoint with transformers' own generate"
        raise CheckpointError(f"{self.decoder} {reason}; {way_out}") from cause

    def run(self, language_model: nn.Module, width: int, dtype: torch.dtype) -> Tensor:
        """Run a few tokens through the decoder; return its hidden states `[1, num_tokens, hidden_size]`."""
        self._told = self._pass(language_model, self._embeds(width, dtype)[1:])
        return self._told[-1]

    def mixes_tokens(self, language_model: nn.Module, width: int, dtype: torch.dtype) -> bool:
        """Return whether a token depends on the one before by more than attention, which here is zero.

        Its row shows that: what its layers pass to attention, or its hidden state, behind another token than in `run`.
        """
        changed = self._pass(language_model, self._embeds(width, dtype)[[0, 2]])
        for row, other in zip(self._told, changed, strict=True):
            last, same = row[..., -1, :].float(), other[..., -1, :].float()
            if not torch.allclose(last, same, rtol=0, atol=SAME * float(last.abs().max()), equal_nan=True):
                return True
        return False

    def _embeds(self, width: int, dtype: torch.dtype) -> Tensor:
        """Return rows of three tokens `[3, width]`."""
        rows = torch.randn(_NUM_TOKENS + 1, width, generator=torch.Generator().manual_seed(0))
        return rows.to(self._keys.device, dtype)

    def _pass(self, language_model: nn.Module, embeds: Tensor) -> list[Tensor]:
        """Run the decoder; return what its layers pass to attention and its hidden states `[..., num_tokens, size]`."""
        self._begin()
        positions = torch.arange(len(embeds), device=embeds.device)[None]
        hidden = language_model(inputs_embeds=embeds[None], position_ids=positions, use_cache=False, paged=self)[0]
        return [*self._rows, hidden]

    def _begin(self) -> None:
        """Forget the layers of the pass before."""
        self.layers, self._keys_of, self._rows = {}, {}, []

    def record(self, layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> None:
        """Note and check what a layer passes to attention, as `paged_attention` takes it.

        Raises:
            CheckpointError: the engine does not compute it.
            ContractError: the layer did not get `paged`.
        """
        if more.pop("paged", None) is None:
            raise not_paged(layer)
        window, softcap, sinks = (more.pop(name, None) for name in ("sliding_window", "softcap", "s_aux"))
        self.note(layer, query, key, value)
        self.check(layer, mask, window, softcap, sinks, more)

    def note(self, layer: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Note the shape of a layer's keys and values, and the layer whose they are: some share those of another."""
        index: Any = getattr(layer, "layer_idx", None)
        if index is None or index in self.layers:
            self.refuse(f"has a layer that attends {'without a layer_idx' if index is None else 'more than once'}")
        if key.shape[2] != query.shape[2]:
            self.refuse(
                "attends to other tokens than its own, of which neither its configuration nor its adapter says anything"
            )
        heads, kv_heads = query.shape[1], key.shape[1]
        if heads % kv_heads:
            self.refuse(f"has {heads} attention heads for {kv_heads} key/value heads, not a multiple of them")
        self._rows += [query, key, value]
        shares = next((layer for layer, keys in self._keys_of.items() if keys is key), None)
        self._keys_of[index] = key
        self.layers[index] = LayerLayout(key.shape[1], key.shape[3], value.shape[3], shares)

    def check(
        self, layer: nn.Module, mask: Any, window: int | None, softcap: float | None, sinks: Tensor | None, more: Any
    ) -> None:
        """Check that the engine computes what a layer asks for.

        Raises:
            CheckpointError: it does not.
        """
        has_bias = isinstance(more.get("position_bias"), DistanceBias)
        known = _HARMLESS | {"position_bias"} if has_bias else _HARMLESS
        unknown = sorted(name for name in more.keys() - known if more[name] is not None and more[name] is not False)
        if unknown:
            described = ", ".join(f"{name}{_per(more[name])}" for name in unknown)
            self.refuse(f"passes {described} to attention, which corellm does not compute")
        if softcap is not None and not self._softcaps:
            self.refuse(
                "caps attention scores, which this attention backend does not (attention_backend='reference' does)"
            )
        if sinks is not None and not self._sinks:
            self.refuse(
                "has attention sinks, which this attention backend does not add (attention_backend='reference' does)"
            )
        if has_bias and not self._biases:
            self.refuse(
                "adds a bias for distances of tokens to attention, which this attention backend does not "
                "(attention_backend='reference' does)"
            )
        if window is not None:
            index: Any = layer.layer_idx
            self.layers[index] = replace(self.layers[index], window=window)
        if isinstance(mask, StatedMask):
            self._check_mask(mask, window)
        elif mask is not None:
            self.refuse("makes attention masks of its own; corellm's attention is causal within a window")
        elif not (getattr(layer, "is_causal", True) if more.get("is_causal") is None else more["is_causal"]):
            self.refuse("attends to later tokens, too; corellm's attention is causal")

    def _check_mask(self, mask: StatedMask, window: int | None) -> None:
        if (mask, window) in self._causal:
            return
        zero = torch.zeros_like(self._keys[0, 0])
        stated = torch.as_tensor(mask.sees(zero, zero, self._queries, self._keys))
        ours = self.seen(window)
        if not torch.equal(stated.expand_as(ours), ours):
            within = "" if window is None else f" within a window of {window}"
            self.refuse(f"states a mask that is not the causal one{within} that its attention is asked for")
        self._causal.add((mask, window))

    def seen(self, window: int | None) -> Tensor:
        """Which keys each query sees in the engine's attention: those up to itself, within the window."""
        seen = self._keys <= self._queries
        return seen if window is None else seen & (self._keys > self._queries - window)


def _per(value: Any) -> str:
    """Say whether an argument `[batch, heads, queries, keys]` of attention has numbers of tokens, or of pairs."""
    shape = tuple(value.shape) if isinstance(value, Tensor) else ()
    if len(shape) != 4 or shape[2] != _NUM_TOKENS:
        return ""
    return {1: " of each token", _NUM_TOKENS: " of each pair of tokens"}.get(shape[3], "")


def _state_mask(*, mask_function: Callable[..., Any], **_: Any) -> StatedMask:
    """Take the place of transformers' functions that make masks."""
    return StatedMask(mask_function)


@torch.inference_mode()
def probe_decoder(
    language_model: nn.Module,
    embedding_width: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_len: int,
    softcaps: bool,
    sinks: bool,
    biases: bool,
    probe_class: type[DecoderProbe] = DecoderProbe,
    stateful: Set[int] = frozenset(),
) -> tuple[dict[int, LayerLayout], Tensor]:
    """Return the layout by layer and a token's hidden state `[1, hidden_size]`, by running the decoder.

    Args:
        language_model: the decoder.
        embedding_width: of the rows that it is given: an embedding, with what its layers take of a token behind it.
        dtype, device: of the model.
        max_len: longest sequence, for which masks are looked at.
        softcaps, sinks, biases: whether the attention backend caps scores, and adds sinks and biases of distances.
        probe_class: how the decoder is run, and what it may ask for.
        stateful: layers that keep a state which the engine holds; they may, but need not attend.

    Raises:
        CheckpointError: it asks for more than the engine computes; says for what.
        ContractError: it never calls paged attention, or returns something else than hidden states.
    """
    probe = probe_class(type(language_model).__name__, max_len, softcaps, sinks, biases, device)
    found = {id(c): c for module in language_model.modules() if (c := getattr(module, "config", None))}
    paged = [c for c in found.values() if getattr(c, "_attn_implementation", None) == ATTENTION_NAME]
    try:
        with recorded_attention(_PROBE_NAME, paged, probe.record, _state_mask):
            output = probe.run(language_model, embedding_width, dtype)
            mixes = not stateful and probe.mixes_tokens(language_model, embedding_width, dtype)
    except (CorellmError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        probe.refuse(f"fails in a step of corellm with {type(error).__name__}: {reason} ({raised_at(error)})", error)
    config: Any = getattr(language_model, "config", None)
    if not probe.layers and not stateful:
        if getattr(config, "_attn_implementation", None) == ATTENTION_NAME:
            probe.refuse(
                "never attends through the engine: it has attention of its own, or a state that transformers' Cache "
                "does not hold"
            )
        raise ContractError(
            f"{probe.decoder} never called paged attention; load_model must set load_config.attn_implementation on the "
            f"text decoder's config"
        )
    if _FORGETTING in (getattr(config, "layer_types", None) or ()):  # a probe without a cache does not see it
        probe.refuse(f"has layers that see the whole prompt, but of generated tokens only the last ({_FORGETTING})")
    # beside `decoder_layers`, `num_hidden_layers` is an encoder's
    num_layers: Any = getattr(config, "decoder_layers", None) or getattr(config, "num_hidden_layers", None)
    num_known = len(probe.layers.keys() | stateful) + _count_pointwise(config)
    if num_layers is not None and num_known < num_layers:
        probe.refuse(
            f"has {num_layers - num_known} of {num_layers} layers that do not attend through the engine, such as "
            f"layers with a state that transformers' Cache does not hold"
        )
    if mixes:
        probe.refuse("mixes tokens outside of attention, and corellm holds no state of it between steps")
    hidden: Tensor = output[0, -1:]
    widths = (embedding_width - rows_width(language_model), embedding_width)  # with rows of its layers, or without
    if hidden.shape not in {(1, width) for width in widths}:
        raise ContractError(
            f"get_language_model returned {probe.decoder}, whose output is {hidden.shape[-1]} wide, not "
            f"{widths[0]}: it must return the decoder without its output layer"
        )
    return probe.layers, hidden


def _count_pointwise(config: Any) -> int:
    """Number of layers that are said to look at each token alone."""
    return sum(kind in _POINTWISE for kind in getattr(config, "layer_types", None) or ())

"""What a decoder that attends to states asks of attention, found at load: `decoder_probe` for such decoders.

Each layer of an encoder-decoder must attend to its own tokens and once to the encoder's states, with keys and values of
one shape, through the cache that the engine gives it; layers of a decoder that attends to items' states may do either.
And each token must have the position that the engine says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from corellm.loading.decoder_probe import SAME, DecoderProbe, StatedMask
from corellm.worker.kv_cache import LayerLayout
from corellm_encoder_decoder.cross_attention import stand_in
from corellm_encoder_decoder.cross_attention_cache import CrossAttentionCache, decoder_arguments

_NUM_STATES = 3


class CrossAttentionProbe(DecoderProbe):
    """Gets what layers pass to attention, be it to their own tokens or to states."""

    def __init__(
        self, decoder: str, max_len: int, softcaps: bool, sinks: bool, biases: bool, device: torch.device
    ) -> None:
        super().__init__(decoder, max_len, softcaps, sinks, biases, device)
        self._device = device
        self._stand_in = stand_in(device)
        self._written: dict[int, LayerLayout] = {}
        self._attended: set[int] = set()
        self._of_states = False  # whether the layer that attends now does so to states

    def run(self, language_model: nn.Module, width: int, dtype: torch.dtype) -> Tensor:
        """Run a first step with positions the other way round, a later one, then first ones, whose layers stay noted.

        Returns:
            Hidden states `[1, num_tokens, hidden_size]`.
        """
        embeds = torch.zeros(2, width, dtype=dtype, device=self._device)
        turned = self._pass(language_model, embeds, (1, 0))
        self._pass(language_model, embeds, num_states=0)
        rows = self._pass(language_model, embeds)
        for ours, other in zip(rows, turned, strict=True):
            if not bool((other.flip(-2) - ours).abs().max() <= SAME * ours.abs().max()):
                self.refuse("does not give tokens the positions that it is told, so requests cannot share a batch")
        return super().run(language_model, width, dtype)

    def _pass(
        self,
        language_model: nn.Module,
        embeds: Tensor,
        at: tuple[int, int] = (0, 1),
        num_states: int = _NUM_STATES,
    ) -> list[Tensor]:
        """Run the decoder; return its layers' queries, keys and values and its hidden states."""
        self._begin()
        self._attended.clear()
        states = embeds.new_zeros(num_states, embeds.shape[1])
        positions = torch.tensor([at], device=self._device)
        cache = CrossAttentionCache(positions, self._stand_in, self._write if num_states else None)
        more = {**decoder_arguments(language_model, positions, states, cache), **self._further_arguments}
        hidden: Tensor = language_model(inputs_embeds=embeds[None], position_ids=positions, paged=self, **more)[0]
        self._check_layers()
        return [*self._rows, hidden]

    @property
    def _further_arguments(self) -> Mapping[str, Any]:
        return {}

    def _check_layers(self) -> None:
        """Refuse layers whose states would not lie in the cache."""
        if self._attended != self.layers.keys():
            self.refuse("has layers that do not attend to its encoder's states through the engine's cache")
        if self._written != self.layers:
            self.refuse(
                "attends to its encoder's states with keys and values of another shape than to its own tokens; corellm "
                "keeps both in one cache by layer"
            )

    def _write(self, layer: int, key: Tensor, value: Tensor) -> None:
        self._written[layer] = LayerLayout(key.shape[1], key.shape[2], value.shape[2])
        self._stand_in.resize_(1, 1, 1, value.shape[2])  # what attends to it takes its output's width from it

    def note(self, layer: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Note the shape of a layer's keys and values, or that it attends to states."""
        self._of_states = key is self._stand_in
        if not self._of_states:
            super().note(layer, query, key, value)
            return
        index: Any = getattr(layer, "layer_idx", None)
        if index is None or index in self._attended:
            self.refuse("attends to its encoder's states without a layer_idx, or more than once in a layer")
        self._attended.add(index)

    def check(
        self, layer: nn.Module, mask: Any, window: int | None, softcap: float | None, sinks: Tensor | None, more: Any
    ) -> None:
        """Check that the engine computes what a layer asks for: of states, that it sees all.

        Raises:
            CheckpointError: it does not.
        """
        if not self._of_states:
            super().check(layer, mask, window, softcap, sinks, more)
            return
        if sinks is not None:
            self.refuse("has attention sinks beside its encoder's states, which corellm does not add")
        bias = more.get("position_bias")
        if isinstance(bias, Tensor) and not bias.any():  # T5's attention to states adds zeros
            more = {**more, "position_bias": None}
        elif bias is not None:
            self.refuse("adds a bias to its attention to its encoder's states, which corellm does not")
        super().check(layer, None, None, softcap, None, {**more, "is_causal": True})  # arguments and caps alone
        causal = getattr(layer, "is_causal", False) if more.get("is_causal") is None else more["is_causal"]
        if causal or window is not None or not (mask is None or self._sees_all(mask)):
            self.refuse("does not let each token attend to all of its encoder's states")

    def _sees_all(self, mask: Any) -> bool:
        if not isinstance(mask, StatedMask):
            return False
        zero, queries, keys = (torch.arange(n, device=self._device) for n in (1, 2, _NUM_STATES))
        return bool(torch.as_tensor(mask.sees(zero[0], zero[0], queries[:, None], keys[None])).all())


class ItemStatesProbe(CrossAttentionProbe):
    """Gets what layers pass that attend to their own tokens or, as others do, to states of items."""

    @property
    def _further_arguments(self) -> Mapping[str, Any]:
        return {"sees_states": torch.ones(2, dtype=torch.bool, device=self._device)}

    def _check_layers(self) -> None:
        """Note layers that attend to states alone; refuse where none does, or through no cache.

        No block has both states and tokens: such a layer's keys and values lie in the memory of another layer's.
        """
        if not self._attended or self._written.keys() != self._attended:
            self.refuse("does not attend to its items' states through the engine's cache")
        if any(self._written[index] != self.layers[index] for index in self._attended & self.layers.keys()):
            self.refuse("has layers whose keys and values of states have another shape than those of its own tokens")
        free = [index for index in self.layers if index not in self._attended]
        for index in sorted(self._attended - self.layers.keys()):
            layout = self._written[index]
            lender = next((other for other in free if self.layers[other] == layout), None)
            self.layers[index] = replace(layout, shares=lender)
            if lender is not None:
                free.remove(lender)
        self.layers = dict(sorted(self.layers.items()))

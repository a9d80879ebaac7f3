"""The model's own forward pass up to its decoder: an item's embeddings, positions, what else the decoder is given.

Knows models of transformers by what they take and give; knows no model family.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from corellm.errors import PlaceholderError
from corellm.modelling import DecoderInputs, Front, LayerInputs, visible_tokens
from corellm.multimodal import write_rows
from corellm_transformers.arguments import AddedRows, ItemMask
from corellm_transformers.spans import Spans, spans_in

if TYPE_CHECKING:
    from corellm.multimodal import MultiModalFeature
    from corellm_transformers.family import Family

_LENGTHS = {"audio_seqlens": "feature_attention_mask"}
"""Arguments of `get_rope_index` that are lengths of items, and the processor's masks whose ones they count."""
_CERTAIN: Mapping[str, Any] = {"sample": False}
"""Arguments of forward passes by which an item has the same embeddings each time: without them some add noise."""
_NAMES = {"second_per_grids": "video_second_per_grid"}
"""Arguments of `get_rope_index` that the processor has under other names."""


def certain(takes: Collection[str]) -> dict[str, Any]:
    """Return those of `_CERTAIN` that a forward pass takes."""
    return {name: value for name, value in _CERTAIN.items() if name in takes}


class Forward:
    """A loaded model, up to its decoder.

    Args:
        model: the whole model.
        decoder: the decoder inside it.
        family: what its processor says.

    Attributes:
        embedding: the model's, of text.
        layer_inputs: what the decoder's layers take of a token beside its embedding; None where they take nothing.
        item_row: what they take of the tokens that take items' embeddings. Set by the check at load.
        arguments: what the decoder is given beside embeddings, by name. Set by the check at load.
        spans: which tokens of a prompt see each other; None before the check at load.
        replaced: `{token of an item: the row that the forward pass embeds where no item is there}`, of those that are
            not in the embedding table. Set by the check at load.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module, family: Family) -> None:
        self.model, self._decoder, self.family = model, decoder, family
        self._front = Front(model, decoder)
        self._takes = signature(model.forward).parameters
        self.embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
        self.layer_inputs, self.item_row = LayerInputs.of(decoder), torch.empty(0)
        self.device: torch.device = self.embedding.weight.device
        self.arguments: dict[str, ItemMask | AddedRows] = {}
        self.spans: Spans | None = None
        self.replaced: dict[int, Tensor] = {}
        owner = next((m for m in (model, getattr(model, "model", None)) if hasattr(m, "get_rope_index")), None)
        self._rope_index: Any = getattr(owner, "get_rope_index", None)

    # --- items ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def embed(self, modality: str, tokens: Tensor, tensors: Mapping[str, Any]) -> Tensor:
        """Return an item's embeddings: what the forward pass of the item's tokens alone puts in their places.

        Args:
            modality: of the item.
            tokens: those in its place, `[num_tokens]`.
            tensors: the processor's for this item alone.

        Returns:
            `[num_embeds, width]`, of the decoder's width; wider by that of every layer that adds rows of its own.
        """
        given = self.run(tokens, tensors, counted=modality == "video")
        rows: Tensor = given.embeds[0][self.takes_embeddings(modality, tokens), : self._hidden_size]
        for name, added in self._added:
            value = given.more.get(name)  # some modalities have none
            more = [torch.zeros_like(rows)] * added.count if value is None else added.rows(value)
            rows = torch.cat([rows, *more], dim=-1)
        return rows

    def merged(self, inputs_embeds: Tensor, rows: Tensor, is_multimodal: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return text embeddings with items' in their places, and the decoder's further arguments."""
        embeds = inputs_embeds[:, : self._hidden_size]
        own, *parts = torch.split(rows, embeds.shape[-1], dim=-1)
        write_rows(embeds, own, is_multimodal)
        if self.layer_inputs is not None:
            inputs_embeds[is_multimodal, self._hidden_size :] = self.item_row
        more: dict[str, Any] = {
            name: mask.of(is_multimodal) for name, mask in self.arguments.items() if isinstance(mask, ItemMask)
        }
        for name, added in self._added:
            more[name], parts = added.of(parts[: added.count]), parts[added.count :]
        return inputs_embeds, more

    @property
    def _added(self) -> list[tuple[str, AddedRows]]:
        return [(name, added) for name, added in self.arguments.items() if isinstance(added, AddedRows)]

    @property
    def _hidden_size(self) -> int | None:
        """Where an embedding ends, and the rows of layers begin; None where there are none."""
        return None if self.layer_inputs is None else self.layer_inputs.hidden_size

    def table(self, input_ids: Tensor) -> Tensor:
        """Return rows of the embedding table `[num_tokens, width]`, with what the layers take beside them."""
        embeds: Tensor = self.embedding(input_ids)
        return embeds if self.layer_inputs is None else self.layer_inputs.behind(embeds, input_ids)

    def text(self, input_ids: Tensor) -> Tensor:
        """Return embeddings of text `[num_tokens, width]`: a model may generate an item's tokens, too."""
        embeds = self.table(input_ids)
        for token, row in self.replaced.items():
            embeds = torch.where((input_ids == token)[:, None], row, embeds)
        return embeds

    def takes_embeddings(self, modality: str, tokens: Tensor) -> Tensor:
        """Which of an item's tokens take embeddings, `[num_tokens]`."""
        wanted = torch.tensor(sorted(self.family.modalities[modality].embed_token_ids), device=tokens.device)
        return torch.isin(tokens, wanted)

    def run(self, tokens: Tensor, tensors: Mapping[str, Any], *, counted: bool = False) -> DecoderInputs:
        """Return what the decoder is given for tokens `[num_tokens]` and the tensors of their items.

        Args:
            tokens, tensors: of a prompt, or of one item alone.
            counted: number the positions from 0 instead of asking the model, whose positions of a video may need the
                tokens around it.
        """
        inputs: dict[str, Any] = {"input_ids": tokens[None], "attention_mask": torch.ones_like(tokens)[None], **tensors}
        inputs |= certain(self._takes)
        if "mm_token_type_ids" in self._takes:
            inputs["mm_token_type_ids"] = self._token_types(tokens)[None]
        if counted and "position_ids" in self._takes:
            inputs["position_ids"] = torch.arange(len(tokens), device=tokens.device)[None]
        given = self._front(**inputs)
        return given if self.layer_inputs is None else self.layer_inputs.joined(given)

    def _token_types(self, tokens: Tensor) -> Tensor:
        """Return 0 for text, and a number for each modality, `[num_tokens]`, as the processor does."""
        (types,) = self.family.processor.create_mm_token_type_ids([tokens.tolist()])
        return torch.tensor(types, device=tokens.device)

    def spans_in(self, inputs: Mapping[str, Any], places: Mapping[str, Tensor]) -> Spans | None:
        """Return which tokens of a prompt see each other, None where no spans explain it.

        Args:
            inputs: the processor's output for the prompt, on the model's device.
            places: `{modality: [num_tokens]}`, which tokens take embeddings of its items.
        """
        given = {name: value for name, value in inputs.items() if name in self._takes}
        if "mm_token_type_ids" in self._takes:
            given["mm_token_type_ids"] = self._token_types(inputs["input_ids"][0])[None]
        return spans_in(visible_tokens(self.model, self._decoder, given), places)

    # --- positions --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def positions(self, token_ids: Sequence[int], items: Sequence[Mapping[str, Any]]) -> tuple[Tensor, int] | None:
        """Return a prompt's M-RoPE positions `[axes, num_tokens]` and the offset of generated tokens; None to count.

        Args:
            token_ids: of the prompt.
            items: the tensors of its items, in the order of the prompt.

        Raises:
            PlaceholderError: it cannot tell the items apart, as where no token stands between two.
        """
        if self._rope_index is None:
            return None
        tokens = torch.tensor(token_ids)
        known: dict[str, Any] = {
            "input_ids": tokens[None],
            "attention_mask": torch.ones_like(tokens)[None],
            "mm_token_type_ids": self._token_types(tokens)[None],
        }
        wanted = signature(self._rope_index).parameters
        for name in wanted:
            source = _LENGTHS.get(name) or _NAMES.get(name, name)
            parts = [item[source].cpu() for item in items if isinstance(item.get(source), Tensor)]
            if parts:
                known[name] = torch.cat([part.sum(-1) if name in _LENGTHS else part for part in parts])
        try:
            positions, delta = self._rope_index(**{name: value for name, value in known.items() if name in wanted})
        except (RuntimeError, StopIteration, IndexError, TypeError) as error:
            raise PlaceholderError(
                f"{type(self.model).__name__} has no positions for a prompt with its {len(items)} items there; put "
                "text between them, or use a chat template, which usually does"
            ) from error
        return positions[:, 0].cpu(), int(torch.as_tensor(delta).flatten()[0])

    def counts_positions(self) -> None:
        """Note that the decoder counts positions itself, whatever `get_rope_index` would say."""
        self._rope_index = None

    def data_of(self, features: Sequence[MultiModalFeature]) -> list[dict[str, Any]]:
        """Return the tensors of items, as the processor made them for each alone."""
        return [feature.data.get_data() for feature in features]

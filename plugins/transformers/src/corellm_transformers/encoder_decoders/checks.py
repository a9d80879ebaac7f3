"""Whether the engine will do what an encoder-decoder's own forward pass does: compared at load, on small items.

What differs is refused with the reason. Knows models of transformers by what they take and give; knows no model family.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError
from corellm_transformers.distance_biases import give_tables
from corellm_transformers.encoder_decoders.items import Items
from corellm_transformers.encoder_decoders.outline import Outline
from corellm_transformers.encoder_decoders.passing import hand_on
from corellm_transformers.encoder_decoders.positions import count_by_place
from corellm_transformers.encoder_decoders.prepared import prepared, take_prepared
from corellm_transformers.encoder_decoders.reading import (
    FAILURES,
    STATES,
    embeddings_given,
    leave_out_logits,
    logits_of,
    not_run,
    share_embeddings,
    states_given,
)
from corellm_transformers.family import needs_plugin
from corellm_transformers.small_items import turned

_NUM_TOKENS = 5


class Reader:
    """A loaded encoder-decoder, compared with what the engine will do.

    Args:
        model: the whole model.
        decoder: inside it.
        items: what its processor makes of items.
        outline: of the model.

    Raises:
        CheckpointError: its forward pass does something else; says in what.
    """

    def __init__(self, model: Any, decoder: nn.Module, items: Items, outline: Outline) -> None:
        self._model, self._decoder = model, decoder
        share_embeddings(model, decoder)
        table = model.get_input_embeddings().weight
        self._device, self._dtype = table.device, table.dtype
        self._scale = 1.0
        try:
            self._check_states(items, outline)
            self._check_embeddings()
            hand_on(decoder)
            leave_out_logits(model, decoder)
            give_tables(decoder)
            self._makes_logits_alone = self._has_plain_output_layer()
            if self._prepares:
                take_prepared(decoder, self._width)
        except FAILURES as error:
            raise not_run(model, error) from error

    def _refused(self, reason: str) -> CheckpointError:
        return needs_plugin(f"{type(self._model).__name__} {reason}", "get_encoder_states")

    def states(self, tensors: dict[str, Any]) -> Tensor:
        """Return the states of an item, `[num_states, hidden_size]`."""
        own = self._encoded(tensors)
        return prepared(self._decoder, own) if self._prepares else own

    def _encoded(self, tensors: dict[str, Any]) -> Tensor:
        """Return the states that the decoder is given."""
        given = {name: self._on_device(value) for name, value in tensors.items()}
        return states_given(self._model, self._decoder, given)

    def _on_device(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(self._device, self._dtype if value.is_floating_point() else value.dtype)

    @torch.inference_mode()
    def text(self, input_ids: Tensor) -> Tensor:
        """Return embeddings of the decoder's tokens, `[num_tokens, hidden_size]`."""
        embeds: Tensor = self._model.get_input_embeddings()(input_ids)
        return embeds if self._scale == 1.0 else embeds * self._scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states, `[num_sampled, vocab_size]`."""
        if self._makes_logits_alone:
            logits: Tensor = self._model.get_output_embeddings()(hidden)
            return logits
        return logits_of(self._model, self._decoder, hidden)

    # --- compared at load -------------------------------------------------------------------------------------------

    def _check_states(self, items: Items, outline: Outline) -> None:
        """Refuse other numbers of states than were counted, and a model that does not tell items apart."""
        made = []
        for item in (items.small(), turned(items.small()), items.small(1)):
            tensors = items.process(item, {})
            made.append(self._encoded(tensors))
            if made[-1].shape != (counted := outline.states(tensors)):
                raise self._refused(
                    f"makes {len(made[-1])} states of an item for which its shape says {counted[0]}, as where some are "
                    "masked"
                )
        self._width = made[0].shape[-1]
        self._prepares = prepared(self._decoder, made[0]) is not made[0]
        if torch.equal(made[0], made[1]):
            raise self._refused("gives two different items the same states")

    def _check_embeddings(self) -> None:
        """Find what a decoder does to its tokens' embeddings beside adding positions: a scale, or nothing."""
        some = torch.linspace(0, len(self._model.get_input_embeddings().weight) - 1, _NUM_TOKENS, device=self._device)
        ids = some.long()
        positions = torch.arange(_NUM_TOKENS, device=self._device)[None]
        more = {"position_ids": positions} if "position_ids" in signature(self._decoder.forward).parameters else {}
        more[STATES] = self._model.get_input_embeddings().weight.new_zeros(1, 1, self._width)
        theirs = embeddings_given(self._decoder, input_ids=ids[None], **{STATES: more[STATES].clone()})
        count_by_place(self._decoder, self.text)
        try:
            embeddings_given(self._decoder, inputs_embeds=self.text(ids)[None], **more)
        except (AttributeError, TypeError, ValueError) as error:
            raise self._refused("has a decoder that takes tokens, and no embeddings of them") from error
        for scale in (1.0, float(getattr(self._decoder, "embed_scale", 1.0))):
            self._scale = scale
            ours = embeddings_given(self._decoder, inputs_embeds=self.text(ids)[None], **more)
            if torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max())):
                return
        raise self._refused("embeds its decoder's tokens in a way of its own")

    def _has_plain_output_layer(self) -> bool:
        weight: Tensor = self._model.get_output_embeddings().weight
        generator = torch.Generator().manual_seed(0)
        hidden = (8 * torch.randn(3, weight.shape[1], generator=generator)).to(weight)
        with torch.inference_mode():
            alone = self._model.get_output_embeddings()(hidden)
            return torch.equal(alone, logits_of(self._model, self._decoder, hidden))

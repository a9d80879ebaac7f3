"""Whether a decoder needs no more of a token than its embedding, which is all that the engine gives it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corellm.attention.backend import AttentionCall
from corellm.attention.paged import PagedStep
from corellm.errors import CheckpointError, ContractError
from corellm.modelling import LayerInputs


class _NoAttention(PagedStep):
    """A step whose attention is zero."""

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        """See `corellm.attention.paged.PagedStep`."""
        return call.query.new_zeros(*call.query.shape[:2], call.value.shape[2])


@torch.inference_mode()
def check_embeddings(model: Any, layer_inputs: LayerInputs | None = None) -> None:
    """Compare the decoder's output for token ids and for their embeddings.

    Args:
        model: the whole model.
        layer_inputs: what its layers take beside embeddings.

    Raises:
        CheckpointError: they differ.
    """
    decoder, embedding = model.get_decoder(), model.get_input_embeddings()
    ids = torch.arange(2, device=embedding.weight.device)[None]
    embeds = embedding(ids) if layer_inputs is None else layer_inputs.behind(embedding(ids)[0], ids[0])[None]
    try:
        given, embedded = (
            decoder(**inputs, position_ids=ids, use_cache=False, paged=_NoAttention())[0]
            for inputs in ({"input_ids": ids}, {"inputs_embeds": embeds})
        )
    except ContractError:
        return  # it attends in a way that the core's probe of the decoder refuses, with the reason
    if not torch.equal(given, embedded):
        raise CheckpointError(
            f"{type(decoder).__name__} takes more of a token than its embedding, which corellm does not give it; run "
            f"this checkpoint with transformers' own generate"
        )

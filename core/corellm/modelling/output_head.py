"""How a causal language model makes logits of hidden states: by its output layer alone, or with more.

Some models cap, scale or mask what their output layer gives. Its own forward pass does that, run with a decoder that
returns the hidden states it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from corellm.errors import CheckpointError, raised_at
from corellm.modelling.given_hidden import GivenHidden

LogitsFunction = Callable[[Any, Tensor], Tensor]
"""From model and hidden states `[num_sampled, hidden_size]` to logits `[num_sampled, vocab_size]`."""


@torch.inference_mode()
def logits_function(model: Any) -> LogitsFunction:
    """Return the quickest function that gives the model's logits: its output layer, if that alone gives the same.

    Raises:
        CheckpointError: the forward pass does not keep decoder and output layer apart.
    """
    kind, decoder = type(model), model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder).split(".")

    def alone(model: Any, hidden_states: Tensor) -> Tensor:
        layer = model.get_output_embeddings()
        logits: Tensor = layer(hidden_states.to(layer.weight.dtype))  # some decoders keep the residual in float32
        return logits

    def whole(model: Any, hidden_states: Tensor) -> Tensor:
        given = GivenHidden(model, *path)
        logits: Tensor = kind.forward(given, inputs_embeds=hidden_states[None], use_cache=False).logits[0]
        return logits

    try:
        layer = model.get_output_embeddings()
        weight: Tensor = layer.weight
        width = getattr(layer, "in_features", None) or weight.shape[1]  # the weight of a rounded layer is empty
        hidden = 8 * torch.randn(3, width, generator=torch.Generator().manual_seed(0)).to(weight)
        return alone if torch.equal(alone(model, hidden), whole(model, hidden)) else whole
    except Exception as error:
        raise CheckpointError(
            f"{kind.__name__} does not make logits of its decoder's hidden states alone "
            f"({type(error).__name__}, {raised_at(error)}); run this checkpoint with transformers' own generate"
        ) from error

"""A model's forward pass beside its decoder: the states that it gives the decoder, the decoder's embeddings, logits.

Knows models of transformers by what they take and give; knows no model family.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions

from corellm.errors import CheckpointError, ContractError
from corellm_transformers.family import needs_plugin

STATES, _MASK = "encoder_hidden_states", "encoder_attention_mask"
"""What a decoder is given of its encoder."""
FAILURES = (ContractError, ValueError, TypeError, LookupError, RuntimeError, AttributeError)
"""What a forward pass raises that is not as is expected here."""


def not_run(model: Any, error: Exception) -> CheckpointError:
    """Return the refusal of a model whose forward pass does not come to its decoder."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return needs_plugin(f"{type(model).__name__} cannot be run up to its decoder ({reason})", "get_encoder_states")


@dataclass
class Encoded(BaseModelOutput):  # type: ignore[misc]  # transformers has no types
    """What an encoder gives, by all the names that models look for."""

    attention_mask: Tensor | None = None


class _Reached(BaseException):
    """The forward pass has come to a part. No error: nothing on the way should catch it."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments


def share_embeddings(model: Any, decoder: Any) -> None:
    """Have a model name the embeddings of tokens, where it does not, as its decoder does."""
    try:
        model.get_input_embeddings()
    except NotImplementedError:
        model.get_input_embeddings = decoder.get_input_embeddings


@torch.inference_mode()
def states_given(model: Any, decoder: nn.Module, tensors: Mapping[str, Any]) -> Tensor:
    """Return the states that a model gives its decoder for one item, `[num_states, width]`; those it masks left out.

    Args:
        model: the whole model, or its outline.
        decoder: inside it.
        tensors: the processor's, with its dimension of items.

    Raises:
        ContractError: the decoder is given no states.
    """
    table = model.get_input_embeddings().weight
    embeds = torch.zeros(1, 1, table.shape[-1], dtype=table.dtype, device=table.device)
    given = arguments_given(model, decoder, **tensors, decoder_inputs_embeds=embeds)
    states, mask = given.get(STATES), given.get(_MASK)
    if not isinstance(states, Tensor) or states.dim() != 3:
        raise ContractError(f"{type(model).__name__} gives its decoder no {STATES}")
    return states[0] if mask is None else states[0][mask.view(-1).bool()]


@torch.inference_mode()
def embeddings_given(decoder: nn.Module, **inputs: Tensor) -> Tensor:
    """Return what a decoder gives its first layer for tokens or embeddings, `[num_tokens, hidden_size]`.

    Raises:
        ContractError: it has no layers, or gives them something else.
    """
    given = arguments_given(decoder, layers_of(decoder)[0], **inputs)
    hidden = given.get("hidden_states", given.get("0"))
    if not isinstance(hidden, Tensor):
        raise ContractError(f"{type(decoder).__name__} gives its first layer no hidden_states")
    return hidden[0]


def layers_of(decoder: nn.Module) -> nn.ModuleList:
    """Return a decoder's layers.

    Raises:
        ContractError: it has none.
    """
    layers = next((part for part in decoder.children() if isinstance(part, nn.ModuleList)), None)
    if layers is None:
        raise ContractError(f"{type(decoder).__name__} has no layers")
    return layers


def attentions_of(layer: nn.Module) -> list[nn.Module]:
    """Return the attention of a decoder's layer: to its own tokens, and to states."""
    return [part for part in layer.modules() if part is not layer and hasattr(part, "layer_idx")]


def logits_of(model: Any, decoder: nn.Module, hidden: Tensor) -> Tensor:
    """Return the logits `[num_sampled, vocab_size]` of hidden states `[num_sampled, hidden_size]`."""
    head = model.get_output_embeddings()
    if any(part is head for part in decoder.modules()):
        made: Tensor = type(head).forward(head, hidden)  # its own may be left out, see `leave_out_logits`
        return made

    def forward(*_: Any, **__: Any) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden[None])

    nothing = Encoded(last_hidden_state=hidden[None, :1])
    given = with_forward(model, decoder, forward)
    logits: Tensor = given(encoder_outputs=nothing, decoder_inputs_embeds=hidden[None], use_cache=False).logits[0]
    return logits


def leave_out_logits(model: Any, decoder: nn.Module) -> None:
    """Have a decoder that makes logits itself return the hidden states that it would make them of."""
    head = model.get_output_embeddings()
    if any(part is head for part in decoder.modules()):
        head.forward = _as_it_is


def _as_it_is(hidden: Tensor) -> Tensor:
    return hidden


def with_forward(module: nn.Module, part: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """Return a copy of a module, with the same weights, in which a part has another forward pass."""
    path = next(name for name, inner in module.named_modules() if inner is part)
    made = at = copy.copy(module)
    for name in path.split("."):
        at._modules = dict(at._modules)
        inner = copy.copy(at._modules[name])
        assert inner is not None
        at._modules[name] = at = inner
    at.forward = forward
    return made


def arguments_given(module: nn.Module, part: nn.Module, **inputs: Any) -> Mapping[str, Any]:
    """Return what a part of a module is given for arguments of the module's forward pass.

    Raises:
        ContractError: the forward pass does not come to the part.
    """

    def forward(*places: Any, **arguments: Any) -> None:
        raise _Reached({**{str(i): value for i, value in enumerate(places)}, **arguments})

    try:
        with_forward(module, part, forward)(**inputs, use_cache=False)
    except _Reached as reached:
        return reached.arguments
    raise ContractError(f"{type(module).__name__} does not run its {type(part).__name__}")

"""Decoder layers that add a residual in the kernel of the next norm, or in the matrix product before it.

Knows the structure that most decoders share: norm, attention, sum, norm, MLP, sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from corellm.attention.paged import PagedStep
from corellm.transformers_releases import no_cache
from corellm_kernels.fusion.attention import is_paged
from corellm_kernels.fusion.kernel_set import KernelSet
from corellm_kernels.fusion.layer_swap import agree, copied, derived, draw, outcome, swapped_for
from corellm_kernels.fusion.mlp import FusedGatedMLP
from corellm_kernels.fusion.norms import FusedNorm


class FusedDecoderLayer(nn.Module):
    """A decoder layer with two sums and a norm in fewer kernels."""

    input_layernorm: nn.Module
    self_attn: nn.Module
    post_attention_layernorm: FusedNorm
    mlp: nn.Module
    gives_tuple: bool

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the layer's output for `[1, num_tokens, width]`; with positional arguments the original runs."""
        if args:
            return super().forward(hidden_states, *args, **kwargs)
        # sums are written to the attention's output, which nothing else uses; the layer's input is the caller's
        total, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        needed = kwargs["paged"].needed_after(self.self_attn.layer_idx)
        if needed is not None:
            hidden_states, total = hidden_states[:, needed], total[:, needed]
        inner = self.post_attention_layernorm.of_sum(hidden_states, total)
        total = self.mlp.add_to(total, inner) if isinstance(self.mlp, FusedGatedMLP) else total + self.mlp(inner)
        return (total,) if self.gives_tuple else total


class _Step(PagedStep):
    """Stands in for a step, all of whose tokens are needed."""


class _Child(nn.Module):
    """Stands in for attention or MLP: records its input and returns given numbers."""

    def __init__(self, gives: Tensor, *, with_weights: bool) -> None:
        nn.Module.__init__(self)  # not that of the class it stands in for
        self.given: list[tuple[Tensor, dict[str, Any]]] = []
        self.layer_idx = 0
        self._gives, self._with_weights = gives, with_weights

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Any:
        """Return the given numbers."""
        self.given.append((hidden_states.clone(), kwargs))
        output = self._gives.clone()
        return (output, None) if self._with_weights else output

    def add_to(self, total: Tensor, hidden_states: Tensor) -> Tensor:
        """Add the given numbers, as a fused MLP does."""
        own: Tensor = self(hidden_states)
        return total + own


@dataclass(frozen=True)
class _Trial:
    output: Any
    inputs: list[Tensor]
    """Inputs of attention and MLP."""
    arguments: dict[str, Any]
    """The attention's other arguments."""


def fused_decoder_layer(module: nn.Module, _: KernelSet) -> nn.Module | None:
    """Return the fused layer; None if the module is another kind of layer."""
    names = ("input_layernorm", "post_attention_layernorm", "self_attn", "mlp")
    before, between, attention, mlp = (getattr(module, name, None) for name in names)
    if not isinstance(before, FusedNorm) or not isinstance(between, FusedNorm) or isinstance(module, FusedDecoderLayer):
        return None
    if not is_paged(attention) or not isinstance(mlp, nn.Module):
        return None
    arguments = {
        "position_embeddings": object(),
        "attention_mask": None,
        "position_ids": None,
        "use_cache": False,
        "paged": _Step(),
        **no_cache(module),
    }
    theirs = outcome(lambda: _tried(module, between.weight, arguments))
    if theirs is None:
        return None
    made = swapped_for(module, FusedDecoderLayer)
    made.gives_tuple = isinstance(theirs.output, tuple)
    ours = outcome(lambda: _tried(made, between.weight, arguments))
    if ours is None or not theirs.arguments.items() <= ours.arguments.items():
        return None
    return made if agree((ours.output, ours.inputs), (theirs.output, theirs.inputs)) else None


def _tried(layer: nn.Module, like: Tensor, arguments: dict[str, Any]) -> _Trial:
    """Run a layer with children whose outputs are as large as its input, so that each affects the sum."""
    x, attended, inner = (draw(like, 1, 3, len(like), seed=seed) for seed in range(3))
    trial = copied(layer, type(layer))
    # of the original's classes: some layers call what kind of MLP they have in another way
    kinds: list[Any] = [type(layer.self_attn), type(layer.mlp)]
    attention: _Child = derived(_Child, kinds[0])(attended, with_weights=True).eval()
    mlp: _Child = derived(_Child, kinds[1])(inner, with_weights=False).eval()
    trial.self_attn, trial.mlp = attention, mlp
    output = trial(x, **arguments)
    ((to_attention, passed),), ((to_mlp, _),) = attention.given, mlp.given
    return _Trial(output, [to_attention, to_mlp], passed)

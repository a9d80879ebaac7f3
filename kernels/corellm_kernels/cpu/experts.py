"""Experts of mixtures, whose weights transformers keeps as one tensor, packed for the C++ kernels.

Knows the marks that transformers gives modules of experts, and their gates by what these compute; knows no router.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from corellm.modelling.linear_additions import ExpertAddition
from corellm.plain_linears import without_values
from corellm.quantization import Quantize
from corellm.system.mapped_weights import release_mapped_weights
from corellm_kernels.cpu.activation_layers import KNOWN
from corellm_kernels.cpu.activations import activation_and_mul
from corellm_kernels.cpu.arguments import ExpertsArguments, ExpertsSumArguments, LinearArguments
from corellm_kernels.cpu.library import empty, kernel, launch, pointer
from corellm_kernels.cpu.linear import NARROW, words_of_narrow_row, words_of_row
from corellm_kernels.cpu.packed_weights import PackedWeights
from corellm_kernels.cpu.packing import PANEL, Packed, Rounding, Unpacked, is_known, pack, unpacked
from corellm_kernels.fusion.layer_swap import (
    agree,
    copied,
    draw,
    is_plain,
    outcome,
    owners,
    shared_parameters,
    swapped_for,
)

_DTYPES = (torch.float32, torch.bfloat16)
_MARKS = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "is_concatenated", "num_experts")
"""What transformers says of a module of experts."""
_INWARD, _OUTWARD = ("gate_up_proj", "up_proj"), "down_proj"
_TRIED = 2
"""Experts that are compared with transformers' before all are packed."""


class Routes(NamedTuple):
    """Experts of each token, and the row of each pair of token and expert once rows are sorted by expert."""

    chosen: Tensor
    """`[num_tokens, top_k]`, int64: the experts of each token. Others than there are have no row."""
    places: Tensor
    """`[num_tokens, top_k]`, int64: each one's row; -1 for none. The first product writes `places` and `starts`."""
    starts: Tensor
    """`[num_experts + 1]`, int64: where the rows of each expert start."""


class Gate(NamedTuple):
    """The function between the two products of an expert, of `[..., 2 * width]`: the gate, then what it multiplies."""

    activation: str
    limit: float | None
    """Upper bound of the gate, and bound of the absolute value of what it multiplies."""
    added: float
    """Number that is added to what the gate multiplies."""

    def __call__(self, gate_up: Tensor) -> Tensor:
        """Return `[..., width]`; changes what it is given."""
        if self.limit is not None:
            gate, up = gate_up.chunk(2, -1)
            gate.clamp_(max=self.limit)
            up.clamp_(-self.limit, self.limit)
        if self.added:
            gate_up.chunk(2, -1)[1].add_(self.added)
        return activation_and_mul(gate_up, self.activation)


class ExpertLinears(nn.Module):
    """A linear layer of each expert, on one packed weight.

    Each row's output is summed in the same order, whichever and how many others there are.

    Args:
        weights: `[num_outputs, num_inputs]` of each expert, or parts of their rows in order.
        biases: `[num_experts, num_outputs]`.
        num_experts: how many there are.
        rounding, pack: as those of `PackedLinear`.
        in_turns: whether rows of weights for what gates and for what it multiplies were in turns, before they were
            put into halves.

    Attributes:
        num_experts, num_inputs, num_outputs, in_turns: of these.
        addition: adds to the outputs.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Tensor | None,
        num_experts: int,
        rounding: Rounding | None = None,
        pack: Callable[[Unpacked], Packed] = pack,
        *,
        in_turns: bool = False,
    ) -> None:
        super().__init__()
        weight = unpacked(weights, rounding)
        self.num_experts, self.num_inputs, self.num_outputs = num_experts, weight.k, weight.n // num_experts
        self.dtype, self.bits = weight.format.dtype, weight.format.bits
        self.weight = without_values(weights[0])
        self._packed, self._scale = pack(weight)
        self._types, self._group = weight.format.types, weight.format.group
        self._words = words_of_row(weight.k, self._group)
        self._bias = None if biases is None else biases.detach().float().contiguous()
        self.in_turns = in_turns
        self.addition: ExpertAddition | None = None
        self.eval()

    def round_inputs(self) -> bool:
        """See `corellm.quantization.RoundsInputs`."""
        if self.bits is None:
            return False
        self._types = (*self._types[:2], NARROW)
        self._words = words_of_narrow_row(self.num_inputs, self._group)
        return True

    def forward(self, x: Tensor, routes: Routes, *, in_order: bool) -> Tensor:
        """Return `[num_tokens * top_k, num_outputs]`, in the order of experts.

        Args:
            x: `[num_tokens, num_inputs]`; or `[num_tokens * top_k, num_inputs]` in the order of experts, contiguous.
            routes: where rows are.
            in_order: whether `x` is in that order. If not, where rows are is written.
        """
        if x.dtype != self.dtype or x.shape[-1] != self.num_inputs or (in_order and not x.is_contiguous()):
            raise TypeError(
                f"expected {self.dtype} of width {self.num_inputs}, got {x.dtype} of shape {tuple(x.shape)}"
            )
        x = x if x.stride(1) == 1 else x.contiguous()
        (tokens, top_k), width = routes.places.shape, self.num_inputs * x.itemsize
        ordered = x if in_order else empty((tokens * top_k, self.num_inputs), x.dtype)
        out = empty((tokens * top_k, self.num_outputs), x.dtype)
        room = empty((tokens * top_k * (self._words + 1),), torch.float32)
        first = LinearArguments(
            None, self.num_inputs, self._packed.data_ptr(), pointer(self._scale), pointer(self._bias),
            None, 0, out.data_ptr(), self.num_outputs, room.data_ptr(),
            0, self.num_outputs, self.num_inputs, self._group,
        )  # fmt: skip
        given = ExpertsArguments(
            kernel("linear", self._types, LinearArguments), first, self._packed.nbytes // self.num_experts,
            self.num_experts, None if in_order else routes.chosen.data_ptr(),
            routes.starts.data_ptr(), routes.places.data_ptr(),
            x.data_ptr(), x.stride(0) * x.itemsize, ordered.data_ptr(),
            width, self.num_outputs * x.itemsize, 4 * (self._words + 1), tokens, top_k,
        )  # fmt: skip
        launch(
            "experts", (x.dtype,), given,
            x, ordered, self._packed, self._scale, self._bias, out, room, *routes,
        )  # fmt: skip
        if self.addition is not None:
            self.addition(ordered, out, routes.chosen, routes.places)
        return out


class PackedExperts(nn.Module):
    """The experts of a mixture, in inference, on packed weights; the class is derived from this one and transformers'.

    A token's outputs do not depend on other tokens, if the gate is known: they are added up in the order in which its
    experts were chosen.
    """

    gate: Gate | None
    has_gate: bool
    has_post_expert_norm: bool

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return `[num_tokens, width]`.

        Args:
            hidden_states: `[num_tokens, width]`.
            top_k_index: `[num_tokens, top_k]`, the experts of each token; others than there are add nothing.
            top_k_weights: `[num_tokens, top_k]`, what their outputs are multiplied by.
        """
        inward, outward = getattr(self, _INWARD[not self.has_gate]), getattr(self, _OUTWARD)
        chosen, shares = top_k_index.long().contiguous(), top_k_weights.float().contiguous()
        if shares.shape != chosen.shape or len(hidden_states) != len(chosen):
            shapes = [tuple(x.shape) for x in (hidden_states, chosen, shares)]
            raise TypeError(f"expected tokens, the experts of each, and the share of each of these; got {shapes}")
        if not chosen.numel():  # without an address
            return hidden_states.new_zeros(hidden_states.shape)
        routes = Routes(chosen, empty(chosen.shape, torch.int64), empty((inward.num_experts + 1,), torch.int64))
        outputs = outward(self._gated(inward(hidden_states, routes, in_order=False)), routes, in_order=True)
        if self.has_post_expert_norm:
            outputs = getattr(self, "post_expert_norm")(outputs).contiguous()  # noqa: B009 - of a class derived from this
        out = empty((len(chosen), outward.num_outputs), outputs.dtype)
        given = ExpertsSumArguments(
            outputs.data_ptr(), routes.places.data_ptr(), shares.data_ptr(), out.data_ptr(), *chosen.shape, out.shape[1]
        )
        launch("experts_sum", (outputs.dtype,), given, outputs, routes.places, shares, out)
        return out

    def _gated(self: Any, inner: Tensor) -> Tensor:
        if self.gate is not None:
            made: Tensor = self.gate(inner)
            return made
        gated: Tensor = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
        return gated.contiguous()


def pack_experts(
    model: nn.Module, quantize: Quantize | None = None, packed: PackedWeights | None = None
) -> Counter[str]:
    """Replace modules of experts inside `model` by packed ones, one parameter after another.

    Args:
        model: changed in place, after its activations were replaced.
        quantize: rounds weights, as those of linear layers of the same sizes.
        packed: packs weights by name.

    Returns:
        Descriptions of what was done, with how often.
    """
    packed, done = packed or PackedWeights(), Counter[str]()
    paths, shared = {id(module): path for path, module in model.named_modules()}, shared_parameters(model)
    for parent, name in owners(model):
        module: Any = getattr(parent, name)
        if not all(hasattr(module, mark) for mark in _MARKS):
            continue
        gate = _gate_of(module)
        roundings = _roundings(module, quantize)
        if not is_plain(module, shared) or roundings is None or not _agree(module, gate):
            done["Experts: left to transformers"] += 1
            continue
        made = swapped_for(module, PackedExperts)
        setattr(parent, name, made)
        del module
        _pack(made, gate, roundings, partial(_packed_at, packed, f"{paths[id(parent)]}.{name}"))
        release_mapped_weights()
        bits = {linears.bits or 0 for linears in made.children() if isinstance(linears, ExpertLinears)} - {0}
        done["Experts: packed weights" + "".join(f" of {n} bits" for n in sorted(bits))] += 1
    return done


def _packed_at(packed: PackedWeights, path: str, parameter: str, weight: Unpacked) -> Packed:
    return packed.packed(f"{path}.{parameter}", weight)


def _parameters_of(module: Any) -> tuple[str, str]:
    return _INWARD[not module.has_gate], _OUTWARD


def _pack(
    made: Any, gate: Gate | None, roundings: Sequence[Rounding | None], pack_as: Callable[[str, Unpacked], Packed]
) -> None:
    """Replace the parameters of a copy of a module of experts by linear layers of the same names."""
    made.gate = gate
    for parameter, rounding in zip(_parameters_of(made), roundings, strict=True):
        splits = parameter != _OUTWARD and gate is not None and not made.is_concatenated
        weights = _weights(made, parameter, splits=splits)
        biases = made._parameters.pop(f"{parameter}_bias", None)
        if biases is not None and splits:
            biases = torch.cat([biases[:, ::2], biases[:, 1::2]], 1)
        linears = ExpertLinears(
            weights, biases, made.num_experts, rounding, partial(pack_as, parameter), in_turns=splits
        )
        del made._parameters[parameter], weights
        made.add_module(parameter, linears)


def _weights(module: Any, parameter: str, *, splits: bool = False) -> list[Tensor]:
    """Return the weight of each expert, `[out_features, in_features]`.

    Args:
        module: the experts.
        parameter: its name.
        splits: return every second row first, then those between, as two weights.
    """
    whole = module._parameters[parameter].detach()
    found = [weight.t() if module.is_transposed else weight for weight in whole]
    return [weight[first::2] for weight in found for first in (0, 1)] if splits else found


def _roundings(module: Any, quantize: Quantize | None) -> list[Rounding | None] | None:
    """Return how the parameters of experts are rounded; None where they cannot be packed."""
    found: list[Rounding | None] = []
    for parameter in _parameters_of(module):
        tensor = module._parameters.get(parameter)
        if tensor is None or tensor.dim() != 3 or tensor.dtype not in _DTYPES or len(tensor) != module.num_experts:
            return None
        if module.has_bias != (f"{parameter}_bias" in module._parameters):
            return None
        weight = _weights(module, parameter)[0]
        if len(weight) % PANEL:
            return None
        linear = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        rounding = None if quantize is None else quantize(linear)
        if not is_known(rounding):
            return None
        found.append(rounding)
    return found


def _gate_of(module: Any) -> Gate | None:
    """Return the gate of a module of experts; None if it has none, or another one than is known."""
    if not module.has_gate:
        return None
    stated = [value for name, value in vars(module).items() if "limit" in name and isinstance(value, (int, float))]
    sizes = torch.tensor([3.0, 20.0, *(3.0 * limit for limit in stated)])  # some beyond each limit
    points = draw(sizes, len(sizes), 128) * sizes[:, None]
    given = outcome(lambda: module._apply_gate(points.clone()))
    in_halves = points if module.is_concatenated else torch.cat([points[:, ::2], points[:, 1::2]], 1)
    gates = (Gate(*one) for one in product(KNOWN, (None, *stated), (0.0, 1.0)))
    return next((gate for gate in gates if given is not None and agree(gate(in_halves.clone()), given)), None)


def _agree(module: Any, gate: Gate | None) -> bool:
    """Whether a module of packed experts gives the outputs of one of transformers; tried on some of the experts."""
    some = copied(module, type(module))
    some._parameters = {
        name: nn.Parameter(parameter[:_TRIED], requires_grad=False) for name, parameter in module._parameters.items()
    }
    some.num_experts = min(_TRIED, module.num_experts)
    x = draw(module._parameters[_OUTWARD], 3, _weights(module, _OUTWARD)[0].shape[0])
    chosen, shares = torch.tensor([[0, 1], [1, 0], [0, 1]]).clamp(max=some.num_experts - 1), draw(x, 3, 2, seed=1)
    theirs = outcome(lambda: some(x, chosen, shares))
    made = swapped_for(some, PackedExperts)
    _pack(made, gate, (None, None), lambda parameter, weight: pack(weight))
    return isinstance(theirs, Tensor) and agree(outcome(lambda: made(x, chosen, shares)), theirs)

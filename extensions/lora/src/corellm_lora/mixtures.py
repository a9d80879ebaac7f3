"""Mixtures of experts whose weights transformers keeps as one tensor: what an adapter changes of experts and routers.

Knows modules, their rows and factors; knows neither slots nor requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from corellm.modelling.linear_additions import AddLowRank
from corellm_lora.adapter_files import Values
from corellm_lora.low_rank import Slots
from corellm_lora.terms import ExpertWeights

_INWARD, _OUTWARD = ("gate_up_proj", "up_proj"), "down_proj"


def expert_sizes(module: Any) -> dict[str, tuple[int, int, int]]:
    """Return number, inputs and outputs of experts, by parameter in the module's order; empty for other modules."""
    if not (hasattr(module, "has_gate") and hasattr(module, "is_transposed")):
        return {}
    if linears := expert_linears(module):
        return {name: (one.num_experts, one.num_inputs, one.num_outputs) for name, one in linears.items()}
    sizes = {}
    for name, parameter in module.named_parameters(recurse=False):
        if name in (*_INWARD, _OUTWARD) and parameter.dim() == 3 and parameter.is_floating_point():
            number, first, last = parameter.shape
            sizes[name] = (number, first, last) if module.is_transposed else (number, last, first)
    return sizes if len(sizes) == 2 else {}


def expert_linears(module: nn.Module) -> dict[str, Any]:
    """Return the layers with an `addition` that took the place of a module's parameters, by these names."""
    return {name: child for name, child in module.named_children() if hasattr(child, "addition")}


def router_size(module: Any, num_experts: int) -> tuple[int, int] | None:
    """Return inputs and outputs of a module that chooses experts for each row by one weight; None for another one."""
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 2 or len(weight) != num_experts:
        return None
    if len(inspect.signature(module.forward).parameters) != 1 or any(module.children()):
        return None  # it takes more than rows, or more happens to these
    with torch.inference_mode():
        output = module(weight.new_ones(3, weight.shape[1]))
    if isinstance(module, nn.Linear) and isinstance(output, Tensor):
        return None  # a linear layer as others are
    found = _tensors(output)
    return (weight.shape[1], num_experts) if all(len(one) == 3 for one in found) else None


class _Factors(NamedTuple):
    """Factors of one expert."""

    a: Tensor
    b: Tensor
    """Multiplied by the adapter's scale."""
    outputs: slice
    """Range of the expert's outputs that they add to."""


class _SlotsOfExperts(NamedTuple):
    """Factors of the experts of one parameter that have some."""

    slots: Slots
    slot_of_expert: Tensor
    """`[num_experts]`, int64; 0 for an expert without factors."""


class ChangedExperts:
    """What one adapter changes of the experts of one layer.

    Where experts' products take additions, each row's factors are added to them. Else the rows run once more: their
    products are torch's, as those of all experts are.

    Args:
        module: the one that has the experts.
        add_low_rank: adds products of factors.
    """

    def __init__(self, module: nn.Module, add_low_rank: AddLowRank) -> None:
        self._module: Any = module
        self._add_low_rank = add_low_rank
        self._factors: dict[tuple[str, int], list[_Factors]] = {}
        """Factors by parameter and expert."""
        self._slots: dict[str, _SlotsOfExperts] = {}
        """The same by parameter, from when they are first added to products."""

    def add(self, place: ExpertWeights, values: Values) -> None:
        """Take factors of one expert, or of all of them, which PEFT keeps together, before the first step."""
        like = getattr(self._module, place.parameter)
        like = getattr(like, "weight", like)
        a, b = (values.tensors[part].to(like.device).float() for part in ("a", "b"))
        b = (b * values.scale).view(len(b), -1, place.num_experts)
        for number, (first, second) in enumerate(
            zip(a.chunk(place.num_experts), b.unbind(2), strict=True), start=place.number or 0
        ):
            made = _Factors(first.to(like.dtype), second.to(like.dtype).contiguous(), slice(*place.outputs))
            self._factors.setdefault((place.parameter, number), []).append(made)

    def add_to(self, parameter: str, x: Tensor, output: Tensor, chosen: Tensor, places: Tensor) -> None:
        """Add to outputs of one parameter, for some tokens: see `corellm.modelling.linear_additions.ExpertAddition`."""
        if parameter not in self._slots:
            self._slots[parameter] = self._slots_of(parameter, x, output)
        slots, slot_of_expert = self._slots[parameter]
        has_row = places >= 0
        slot_of_row = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        slot_of_row[places[has_row]] = slot_of_expert[chosen[has_row]]
        self._add_low_rank(x, output, slots, slot_of_row)

    def _slots_of(self, parameter: str, x: Tensor, output: Tensor) -> _SlotsOfExperts:
        """Move the factors of experts to slots, those of one side by side."""
        linears = getattr(self._module, parameter)
        numbers = sorted(number for name, number in self._factors if name == parameter)
        found = [self._factors.pop((parameter, number)) for number in numbers]
        ranks = [sum(len(one.a) for one in factors) for factors in found]
        slots = Slots(len(found) + 1, max(ranks, default=1), x.shape[1], output.shape[1], x.dtype, x.device)
        slot_of_expert = torch.zeros(linears.num_experts, dtype=torch.int64, device=x.device)
        for slot, (number, factors) in enumerate(zip(numbers, found, strict=True), start=1):
            b, rank = output.new_zeros(output.shape[1], ranks[slot - 1]), 0
            for one in factors:
                b[one.outputs, rank : rank + len(one.a)] = one.b
                rank += len(one.a)
            b = torch.cat([b[::2], b[1::2]]) if linears.in_turns else b
            slots.fill(slot, torch.cat([one.a for one in factors]), b, 1.0)
            slot_of_expert[number] = slot
        return _SlotsOfExperts(slots, slot_of_expert)

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Return what the layer makes of rows `[num_rows, width]`.

        Args:
            x: the rows.
            chosen: the experts of each, `[num_rows, top_k]`.
            shares: what each one's outputs are multiplied by.
        """
        module = self._module
        inward = _INWARD[not module.has_gate]
        made = torch.zeros(*chosen.shape, x.shape[1], dtype=torch.result_type(x, shares), device=x.device)
        for expert in sorted({*chosen.flatten().tolist()}):
            if expert >= module.num_experts:
                continue  # a token's place that no expert takes
            rows, places = torch.where(chosen == expert)
            inner = self._product(inward, expert, x[rows])
            inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
            output = self._product(_OUTWARD, expert, inner)
            if module.has_post_expert_norm:
                output = module.post_expert_norm(output)
            made[rows, places] = (output * shares[rows, places, None]).to(made.dtype)
        return made.sum(1).to(x.dtype)

    def _product(self, parameter: str, expert: int, x: Tensor) -> Tensor:
        weight = getattr(self._module, parameter)[expert]
        x = x.to(weight.dtype)
        output = x @ weight if self._module.is_transposed else functional.linear(x, weight)
        if self._module.has_bias:
            output = output + getattr(self._module, f"{parameter}_bias")[expert]
        for a, b, outputs in self._factors.get((parameter, expert), ()):
            output[:, outputs] += functional.linear(functional.linear(x, a), b)
        return output


class ChangedRouter:
    """What one adapter changes of the weight of one router.

    Args:
        module: the router.
        values: factors.
    """

    def __init__(self, module: Any, values: Values) -> None:
        self._module = module
        a, b = (values.tensors[part].to(module.weight.device).float() for part in ("a", "b"))
        self._added: Tensor = values.scale * b @ a

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """Return what the router makes of rows `[num_rows, width]`."""
        weight = self._module.weight
        own = (weight.float() + self._added).to(weight.dtype)
        make = getattr(weight, "with_values", partial(nn.Parameter, requires_grad=False))  # one that is packed, or not
        self._module._parameters["weight"] = make(own)
        try:
            return _tensors(self._module.forward(x))
        finally:
            self._module._parameters["weight"] = weight


def change_experts(
    module: nn.Module, args: tuple[Tensor, ...], output: Tensor, changes: Sequence[tuple[Any, ChangedExperts]]
) -> None:
    """Change outputs of some rows in place; a forward hook's arguments, and which rows are changed by what."""
    if expert_linears(module):
        return  # factors were added to products
    for places, change in changes:
        output[places] = change(*(arg[places] for arg in args))


def change_routes(
    module: nn.Module, args: tuple[Tensor, ...], output: Any, changes: Sequence[tuple[Any, ChangedRouter]]
) -> None:
    """Change a router's outputs for some rows in place; see `change_experts`."""
    for places, change in changes:
        own = change(args[0].reshape(-1, args[0].shape[-1])[places])
        for whole, some in zip(_tensors(output), own, strict=True):
            whole[places] = some


def _tensors(output: Any) -> Sequence[Tensor]:
    return (output,) if isinstance(output, Tensor) else output

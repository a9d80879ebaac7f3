"""The weights of adapters that run, by slot: factors in memory that stays where it is, and whatever else they change.

Knows layers, slots and rows; knows neither requests nor files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from corellm.modelling.linear_additions import Addition, AddLowRank, LinearAdditions, LowRankAddition, SomeRows
from corellm.plugin.extensions import call_extensions, first_result
from corellm_lora.adapter_files import Values
from corellm_lora.changes import OWN
from corellm_lora.linear_change import LinearChanges
from corellm_lora.low_rank import Slots, add_low_rank
from corellm_lora.mixtures import ChangedExperts, ChangedRouter, change_experts, change_routes, expert_linears
from corellm_lora.rows import Rows
from corellm_lora.table_change import TableChange
from corellm_lora.targets import Targets


class Weights:
    """What adapters change of a model.

    Args:
        targets: the model's modules.
        linears: its linear layers.
        dtype, device: of the model.
        max_loras, max_rank: of adapters that run.

    Attributes:
        embedded, decoded, scored: the rows of the next run of the embeddings, the decoder and the output layer.
        changed: slots that change more of these than factors do.
    """

    embedded: Rows
    decoded: Rows
    scored: Rows

    def __init__(
        self,
        targets: Targets,
        linears: LinearAdditions,
        dtype: torch.dtype,
        device: torch.device,
        max_loras: int,
        max_rank: int,
    ) -> None:
        self.targets, self.num_slots, self.changed = targets, max_loras + 1, set[int]()
        self._dtype, self._device = dtype, device
        self._encoded: Rows | None = None
        self._encodes_slot = 0
        offered = first_result("register_low_rank", callable, device=device, dtype=dtype)
        self._add_low_rank: AddLowRank = offered or add_low_rank
        self._slots: dict[str, Slots] = {}
        self._made: dict[str, LinearChanges] = {}
        self._changes: dict[str, dict[int, Any]] = {}
        """Changes beside factors of linear layers, by module and slot."""
        self._factors: dict[str, set[int]] = {}
        """Slots with factors, by linear layer."""
        self._parameters: dict[int, list[tuple[nn.Module, str, nn.Parameter]]] = {}
        """Encoders' parameters of each slot."""
        self._outside = frozenset(linears.outside) - {targets.output}
        for name, size in {**linears.sizes, **linears.outside}.items():
            self._factors[name] = set()
            self._slots[name] = Slots(self.num_slots, max_rank, *size, dtype, device)
            self._made[name] = LinearChanges(linears.base(name), size.in_features, dtype, device, self._served)
            slot_of_row, find_rows = self._rows_of(name)
            apart = partial(self._apart, name, find_rows)
            linears.add(name, LowRankAddition(self._slots[name], slot_of_row, self._add_low_rank, apart))
        if targets.table:
            targets.module(targets.table).register_forward_hook(self._embed)
        self._mix(targets.experts, change_experts)
        for name in targets.experts:
            for parameter, of_experts in expert_linears(targets.module(name)).items():
                of_experts.addition = partial(self._add_to_experts, name, parameter)
        self._mix(targets.routers, change_routes)

    def fill(self, slot: int, values: Mapping[str, Values]) -> None:
        """Put an adapter's tensors, by module, into a slot."""
        self._clear(slot)
        terms = self.targets.terms()
        for name, of_module in values.items():
            if (experts := terms.expert_weights(name)) is not None:
                change = self._changes.get(experts.module, {}).get(slot)
                change = change or ChangedExperts(self.targets.module(experts.module), self._add_low_rank)
                change.add(experts, of_module)
                self._change(slot, experts.module, change)
            elif name in self.targets.routers:
                self._change(slot, name, ChangedRouter(self.targets.module(name), of_module))
            elif (linear := self._linear(name)) is not None:
                self._fill_linear(slot, linear, of_module)
            elif name == self.targets.table:
                self._change(slot, name, TableChange.of(of_module, self.targets.module(name), self._add_low_rank))
            else:
                self._parameters.setdefault(slot, []).extend(self._own(name, of_module))

    def forget_base(self) -> Collection[int]:
        """Forget what was computed of the model's weights; returns slots that may hold some of it."""
        for made in self._made.values():
            made.forget_base()
        return {slot for changes in self._changes.values() for slot in changes} | self._parameters.keys()

    @contextmanager
    def encoding(self, slot: int) -> Iterator[None]:
        """Have encoders run with what is in a slot."""
        changed = {slot for of_slot in self._changes.values() for slot in of_slot}
        self._encoded, self.targets.is_encoding = Rows.all_of(slot, changed, self._device), True
        self._encodes_slot = slot
        parameters = self._parameters.get(slot, ())
        before = [module._parameters[name] for module, name, _ in parameters]
        try:
            for module, name, parameter in parameters:
                module._parameters[name] = parameter
            yield
        finally:
            for (module, name, _), own in zip(parameters, before, strict=True):
                module._parameters[name] = own
            self._encoded, self.targets.is_encoding = None, False

    def _clear(self, slot: int) -> None:
        self.changed.discard(slot)
        self._parameters.pop(slot, None)
        for name, slots in self._slots.items():
            slots.clear(slot)
            self._factors[name].discard(slot)
        for changes in self._changes.values():
            changes.pop(slot, None)

    def _linear(self, name: str) -> str | None:
        """Return the linear layer that a module is; None for another module."""
        if name in self._slots:  # perhaps joined with others, and no module any more
            return name
        return linear if (linear := self.targets.linear(name)) in self._slots else None

    def _fill_linear(self, slot: int, name: str, values: Values) -> None:
        tensors = {part: tensor.flatten(1) if tensor.dim() > 1 else tensor for part, tensor in values.tensors.items()}
        if name in self.targets.transposed and f"{OWN}weight" in tensors:
            tensors[f"{OWN}weight"] = tensors[f"{OWN}weight"].t().contiguous()
        change, factor = self._made[name].change(values._replace(tensors=tensors)), None
        if change is not None:
            self._change(slot, name, change)
            factor = change.factor
        if "a" in tensors:
            b = tensors["b"].to(self._device).float()
            self._slots[name].fill(slot, tensors["a"], b if factor is None else b * factor[:, None], values.scale)
            self._factors[name].add(slot)

    def _change(self, slot: int, name: str, change: Any) -> None:
        self._changes.setdefault(name, {})[slot] = change
        if name not in self._outside:
            self.changed.add(slot)

    def _own(self, name: str, values: Values) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
        """Yield what takes the place of a module's parameters while encoders run."""
        module: Any = self.targets.module(name)
        tensors = dict(values.tensors)
        if "a" in tensors:  # of a convolution
            a, b = (tensors.pop(part).to(self._device).float().flatten(1) for part in ("a", "b"))
            weight = tensors.get(f"{OWN}weight", module.weight).to(self._device)
            tensors[f"{OWN}weight"] = weight + (values.scale * b @ a).reshape(weight.shape)
        for part, tensor in tensors.items():
            own = part.removeprefix(OWN)
            like: Any = module._parameters[own]
            yield module, own, nn.Parameter(tensor.to(like.device, like.dtype), requires_grad=False)

    def _rows_of(self, name: str) -> tuple[Callable[[int], Tensor | None], Callable[[], Rows | None]]:
        """Return what finds the slots of a layer's rows when it runs, the same for joined layers, and all of them."""
        if name in self._outside:
            return self._encoded_slots, partial(self._encoder_rows, name)
        if name == self.targets.output:
            return (lambda num_rows: self.scored.slot_of_row(num_rows)), (lambda: self.scored)
        return self._decoded_slots, lambda: self.decoded

    def _decoded_slots(self, num_rows: int) -> Tensor:
        return self.decoded.slot_of_row(num_rows)

    def _encoded_slots(self, num_rows: int) -> Tensor | None:
        """Return the slots of encoders' rows; None where they run without an adapter, or another module runs them."""
        return self._encoded.slot_of_row(num_rows) if self._encoded is not None and self._encodes_slot else None

    def _encoder_rows(self, name: str) -> Rows | None:
        self.targets.linear_ran(name)
        return self._encoded

    def _apart(self, name: str, find_rows: Callable[[], Rows | None]) -> Iterator[tuple[SomeRows, Addition]]:
        """Yield the rows of a linear layer that more is done to than that factors are added, and what is."""
        if (rows := find_rows()) is not None:
            for slot, places in rows.groups.items():
                if slot in self._factors[name] or slot in self._changes.get(name, ()):
                    yield places, partial(self._change_linear, name, slot)

    def _change_linear(self, name: str, slot: int, x: Tensor, output: Tensor) -> None:
        if change := self._changes.get(name, {}).get(slot):
            change(x, output)
        if slot in self._factors[name]:
            slot_of_row = torch.full((len(x),), slot, dtype=torch.int64, device=x.device)
            self._add_low_rank(x, output, self._slots[name], slot_of_row)

    def _mix(self, names: Iterable[str], changing: Callable[..., None]) -> None:
        """Have modules of a mixture of experts change their outputs."""
        for name in names:
            self.targets.module(name).register_forward_hook(partial(self._mixed, name, changing))

    def _mixed(self, name: str, changing: Callable[..., None], module: nn.Module, args: Any, output: Any) -> None:
        if self.targets.is_watching:
            is_known = len(args) == (3 if name in self.targets.experts else 1)  # rows, with experts and their shares
            self.targets.mixture_ran(name, args[0].shape[:-1].numel() if is_known else 0)
        changes = self._changes.get(name, {})
        found = [(places, changes[slot]) for slot, places in self.decoded.groups.items() if slot in changes]
        if found:
            changing(module, args, output, found)

    def _add_to_experts(
        self, name: str, parameter: str, x: Tensor, output: Tensor, chosen: Tensor, places: Tensor
    ) -> None:
        """Add factors to the outputs of experts: see `corellm.modelling.linear_additions.ExpertAddition`."""
        changes = self._changes.get(name, {})
        for slot, tokens in self.decoded.groups.items():
            if slot in changes:
                changes[slot].add_to(parameter, x, output, chosen[tokens], places[tokens])

    def _embed(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Change the embeddings of tokens, where adapters do."""
        rows = self.embedded if self._encoded is None else self._encoded
        changes = self._changes.get(self.targets.table, {})
        ids, embeddings = args[0].reshape(-1), output.view(-1, output.shape[-1])
        for slot, places in rows.groups.items():
            if slot in changes:
                some = embeddings[places]
                changes[slot](ids[places], some)
                embeddings[places] = some
        return output

    def _served(self, linear: nn.Linear) -> nn.Module:
        """Return a layer as those of the model are computed: each row's sums in one order, where kernels do so."""
        from corellm.loading.packed_linear import pack_linears, packing_helps

        holder = nn.ModuleDict({"linear": linear})
        fused = call_extensions(
            "fuse_layers", lambda result: True,
            model=holder, device=self._device, dtype=self._dtype, quantization=None, quantize=None, kept=None,
        )  # fmt: skip
        deque(fused, maxlen=0)
        if packing_helps(self._dtype, self._device):
            pack_linears(holder)
        return holder["linear"]

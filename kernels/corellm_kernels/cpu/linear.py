"""Linear layers with weights packed for the C++ kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from corellm.modelling.linear_additions import LowRankAddition
from corellm.plain_linears import plain_linears, without_values
from corellm.quantization import Quantize
from corellm.system.mapped_weights import release_mapped_weights
from corellm_kernels.cpu.arguments import LinearArguments
from corellm_kernels.cpu.library import empty, launch, pointer
from corellm_kernels.cpu.low_rank import Factors, takes
from corellm_kernels.cpu.packed_weights import PackedWeights
from corellm_kernels.cpu.packing import Packed, Rounding, Unpacked, is_known, pack, unpacked, unpacked_groups
from corellm_kernels.fusion.layer_swap import concatenated
from corellm_kernels.grouped_linear import GroupedLinear
from corellm_kernels.int8_inputs import GROUP

NARROW = "int8_rows"
"""Ending of the names of products that round their inputs to 8 bits."""
_DTYPES = (torch.float32, torch.bfloat16)
_RELEASE_AFTER = 128 << 20
"""Bytes of weights that were packed, after which the pages of their files are given back."""


class SideBySide(nn.Linear):
    """Linear layers of the same inputs as one, until they are packed: their weights stay where they are."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        nn.Module.__init__(self)  # that of a linear layer makes a weight
        self.parts = tuple(layers)  # no children of this: they are packed together
        self.in_features, self.out_features = layers[0].in_features, sum(layer.out_features for layer in layers)
        self.weight = layers[0].weight.detach()[:0]
        self.eval()

    def forward(self, input: Tensor) -> Tensor:
        """Return `[..., out_features]` for `[..., in_features]`."""
        return torch.cat([part(input) for part in self.parts], dim=-1)


def joined(layers: Sequence[nn.Linear]) -> nn.Module:
    """Return linear layers as one, without copies of weights that will be packed."""
    return SideBySide(layers) if {layer.weight.dtype for layer in layers} <= {*_DTYPES} else concatenated(layers)


class PackedLinear(nn.Module):
    """`nn.Linear` in inference, on a packed weight.

    Each row's output is summed in the same order however many rows there are: it does not depend on the batch.

    Args:
        linear: the layer.
        rounding: rounds its weight, if that is not in groups. Inputs of rounded weights are rounded, too: as finely as
            sums of 32 bits allow, to 15 bits for some thousands of them and for weights in groups; or to 8 bits, from
            `round_inputs` on.
        pack: packs the weight.
    """

    def __init__(
        self,
        linear: nn.Linear | GroupedLinear,
        rounding: Rounding | None = None,
        pack: Callable[[Unpacked], Packed] = pack,
    ) -> None:
        super().__init__()
        parts = linear.parts if isinstance(linear, SideBySide) else (linear,)
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, linear.weight.dtype
        self.weight = without_values(linear.weight)
        self.bias = without_values(biases[0]) if biases else None
        if isinstance(linear, GroupedLinear):
            weight, self._order = unpacked_groups(linear), linear.order
        else:
            weight, self._order = unpacked([part.weight.detach() for part in parts], rounding), None
        self._row = max(2, self.out_features)
        """Distance between the outputs of two rows: see `_empty_outputs`."""
        self._packed, self._scale = pack(weight)
        self.bits, self._types, self._group = weight.format.bits, weight.format.types, weight.format.group
        self._words = words_of_row(self.in_features, self._group)
        """Numbers of 32 bits that an input's row takes when it is packed, beside one for its factor."""
        self._bias = torch.cat(biases).float() if biases else None
        self._factors: Factors | None = None
        self._taken: list[tuple[slice, LowRankAddition]] = []
        self.eval()

    def round_inputs(self) -> bool:
        """See `corellm.quantization.RoundsInputs`."""
        if self.bits is None:
            return False
        self._types = (*self._types[:2], NARROW)
        self._words = words_of_narrow_row(self.in_features, self._group)
        return True

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return `[..., out_features]` for `[..., in_features]`.

        Args:
            x: the inputs.
            residual: contiguous; if given, the outputs are added to it, in place.
        """
        out = self._empty_outputs(x) if residual is None else residual
        sums = out.view(-1, self.out_features)
        apart = [(outputs, *change) for outputs, addition in self._taken for change in addition.apart()]
        before = [None if residual is None else sums[places, outputs].clone() for outputs, places, _ in apart]
        self._multiply(x, out, residual, self._factors)
        rows = x.reshape(-1, self.in_features)
        for (outputs, places, change), residue in zip(apart, before, strict=True):
            some = sums[places] if residue is None else self.without_low_rank(rows[places])
            change(rows[places], some[:, outputs])
            sums[places, outputs] = some[:, outputs] if residue is None else residue + some[:, outputs]
        return out

    def take_low_rank(self, outputs: slice, addition: LowRankAddition) -> bool:
        """See `corellm.modelling.linear_additions.TakesLowRank`."""
        same_rows = all(addition.slot_of_row == taken.slot_of_row for _, taken in self._taken)
        if not same_rows or not takes(addition, self.dtype):
            return False
        self._taken.append((outputs, addition))
        parts = [(outputs, taken.slots) for outputs, taken in self._taken]
        self._factors = Factors(parts, self.in_features, self.dtype)
        return True

    def without_low_rank(self, x: Tensor) -> Tensor:
        """See `corellm.modelling.linear_additions.TakesLowRank`."""
        out = self._empty_outputs(x)
        self._multiply(x, out, None, None)
        return out

    def _empty_outputs(self, x: Tensor) -> Tensor:
        """Return a tensor for the outputs of `x`.

        A layer with one output, such as a shared expert's gate, leaves a gap behind each. The sigmoid that follows is
        torch's: of contiguous numbers it computes those that fill a vector by other code than the rest, which rounds
        differently, so that a row's value would depend on the number of rows. With gaps all go through the same code.
        """
        return empty((*x.shape[:-1], self._row), x.dtype)[..., : self.out_features]

    def _multiply(self, x: Tensor, out: Tensor, residual: Tensor | None, factors: Factors | None) -> None:
        if x.dtype != self.dtype or x.shape[-1] != self.in_features or not (out.is_contiguous() or residual is None):
            raise TypeError(
                f"expected {self.dtype} of width {self.in_features}, got {x.dtype} of shape {tuple(x.shape)}"
            )
        rows = x.reshape(-1, self.in_features)
        if out.dtype != x.dtype or out.numel() != len(rows) * self.out_features:
            raise TypeError(
                f"expected {len(rows)} x {self.out_features} of {x.dtype} to add to, got {out.dtype} of shape "
                f"{tuple(out.shape)}"
            )
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        ordered = rows if self._order is None else rows.index_select(1, self._order)
        room = empty((len(rows) * (self._words + 1),), torch.float32)
        stride = self._row if residual is None else self.out_features
        given = LinearArguments(
            ordered.data_ptr(), ordered.stride(0), self._packed.data_ptr(), pointer(self._scale), pointer(self._bias),
            pointer(residual), self.out_features, out.data_ptr(), stride, room.data_ptr(),
            len(rows), self.out_features, self.in_features, self._group,
        )  # fmt: skip
        slot_of_row = None if factors is None else self._taken[0][1].slot_of_row(len(rows))
        inner = None
        if factors is not None and slot_of_row is not None:
            inner = factors.room(len(rows))
            given.low_rank = factors.arguments(rows, slot_of_row, inner)
        launch(
            "linear", self._types, given,
            rows, ordered, self._packed, self._scale, self._bias, out, room, slot_of_row, inner,
        )  # fmt: skip


def words_of_row(in_features: int, group: int) -> int:
    """Return how many numbers of 32 bits an input's row takes when it is packed for a weight in groups; 0 for none."""
    return -(-in_features // group) * (group // 2 + 1) if group else in_features


def words_of_narrow_row(in_features: int, group: int) -> int:
    """Return how many numbers of 32 bits an input's row takes when it is rounded to 8 bits."""
    group = group or GROUP
    return -(-in_features // group) * (group // 2 + 2)


def add_product(residual: Tensor, x: Tensor, linear: nn.Module) -> None:
    """Add a linear layer's output for `x` to `residual`, which is contiguous, in place."""
    if isinstance(linear, PackedLinear):
        linear(x, residual)
    else:
        residual.add_(linear(x))


def pack_linears(
    model: nn.Module, quantize: Quantize | None = None, packed: PackedWeights | None = None
) -> Counter[int | None]:
    """Replace linear layers in float32 or bfloat16 inside `model` by packed ones: plain and joined ones, and of groups.

    One after another: no more than a part of one weight is in memory twice.

    Args:
        model: changed in place.
        quantize: rounds the weights of those that have none in groups.
        packed: packs weights by name.

    Returns:
        How many, by the bits of rounded weights; None for others.
    """
    packed = packed or PackedWeights()
    paths = {id(module): path for path, module in model.named_modules()}
    count, read = Counter[int | None](), 0
    for parent, name in plain_linears(model, (SideBySide, GroupedLinear)):
        linear = getattr(parent, name)
        if linear.weight.dtype not in _DTYPES:
            continue
        rounding = quantize(linear) if quantize is not None and isinstance(linear, nn.Linear) else None
        if not is_known(rounding):
            if isinstance(linear, SideBySide):
                setattr(parent, name, concatenated(linear.parts))
            continue  # for the caller: there is no kernel for such weights
        pack_as = partial(packed.packed, f"{paths[id(parent)]}.{name}")
        made = PackedLinear(linear, rounding, pack_as)
        setattr(parent, name, made)
        count[made.bits] += 1
        read += linear.in_features * linear.out_features * linear.weight.itemsize
        if read >= _RELEASE_AFTER:
            release_mapped_weights()
            read = 0
    return count

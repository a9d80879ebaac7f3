"""Weights of 4 or 8 bits in groups along the inputs, and a linear layer of them in torch's operations.

A group of an output has a scale and a zero: its weights are `scale * (integer - zero)`. Both are in 32 bits: a float's
first 24, so that scales of 16 bits are exact, and a zero in 8, for weights of 4 bits in eighths. Every weight then is
exact in float32. Where that is too coarse, a group has a scale and a minimum of 32 bits each, and its weights are
`scale * integer - minimum`; or both are integers of 8 bits, which two floats of a block of 256 inputs multiply. Knows
neither how weights are rounded nor how files have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from corellm.plain_linears import without_values
from corellm_kernels.int8_inputs import rounded_inputs

GROUPS = (16, 32, 64, 128)
"""Inputs that share a scale: as many as the kernels know."""
BLOCK = 256
"""Inputs of a block."""
ZEROS_PER_INTEGER = {4: 8, 8: 1}
"""By bits: how fine zeros are."""
Kind = Literal["zeros", "minima", "blocks"]
"""What groups have beside their scales: minima of blocks are multiplied, as their scales are."""
_SCALE = ~0xFF
"""Bits of a scale."""


def rounded_scales(scales: Tensor) -> Tensor:
    """Return scales in float32 as they are kept, rounded to the nearest; those of 16 bits are kept exactly."""
    bits = scales.float().contiguous().view(torch.int32)
    nearest = (bits + 0x7F + ((bits >> 8) & 1)) & _SCALE
    return torch.where(scales.isfinite(), nearest, bits & _SCALE).view(torch.float32)


@dataclass(frozen=True)
class GroupedWeight:
    """A weight `[n, k]` of integers in groups.

    Attributes:
        integers: uint8 `[n, k]`, below 2 ** bits.
        scales: float32 `[n, groups]`, of `rounded_scales`; any with minima; whole ones from -128 to 127 with blocks.
        zeros: float32 `[n, groups]`; below 256 / ZEROS_PER_INTEGER[bits], in as fine steps; with minima or blocks, as
            scales are.
        group: inputs in a group; the last one may have fewer.
        bits: of an integer, 4 or 8.
        order: int64 `[k]`, which input each column is for; None if they are in order.
        minima: whether zeros are minima, which are subtracted after the scale; with blocks, they are.
        blocks: float32 `[n, blocks, 2]`, what scales and minima of each are multiplied with; None without blocks.
    """

    integers: Tensor
    scales: Tensor
    zeros: Tensor
    group: int
    bits: int
    order: Tensor | None = None
    minima: bool = False
    blocks: Tensor | None = None

    def __post_init__(self) -> None:
        n, k = self.integers.shape
        assert self.group in GROUPS, self.group
        assert self.scales.shape == self.zeros.shape == (n, -(-k // self.group)), (self.scales.shape, self.zeros.shape)
        assert self.blocks is None or (self.minima and (n, k) == (len(self.blocks), BLOCK * self.blocks.shape[1]))

    @property
    def kind(self) -> Kind:
        """What groups have."""
        return "blocks" if self.blocks is not None else "minima" if self.minima else "zeros"

    @property
    def factors(self) -> Tensor:
        """Scales and zeros together, int32 `[n, groups]`, or `[n, groups, 2]` with minima.

        With blocks `[n, blocks, 2 + groups of a block / 2]`: the two floats, then the bytes of two groups in each.
        """
        if self.blocks is not None:
            pairs = torch.stack([self.scales, self.zeros], 2).to(torch.int8)
            return torch.cat([x.reshape(*self.blocks.shape[:2], -1).view(torch.int32) for x in (self.blocks, pairs)], 2)
        if self.minima:
            return torch.stack([self.scales, self.zeros], 2).view(torch.int32)
        zeros = (self.zeros * ZEROS_PER_INTEGER[self.bits]).to(torch.int32)
        return self.scales.contiguous().view(torch.int32) | zeros

    def widened(self) -> Tensor:
        """Return the weight in float32, exactly, its columns in the order of the inputs."""
        n, k = self.integers.shape
        whole = functional.pad(self.integers, (0, -k % self.group)).view(n, -1, self.group)
        scales, zeros = self.scales[:, :, None], self.zeros[:, :, None]
        if self.blocks is not None:
            factors = self.blocks.repeat_interleave(BLOCK // self.group, 1)
            scales, zeros = scales * factors[:, :, :1], zeros * factors[:, :, 1:]
        weight = (scales * whole - zeros if self.minima else scales * (whole - zeros)).view(n, -1)[:, :k]
        return weight if self.order is None else weight[:, self.order.argsort()]


@dataclass(frozen=True)
class EncodedWeight:
    """A weight as a file has it, whose rows become integers in groups whenever they are used.

    Attributes:
        blocks: uint8 `[rows, bytes]`, one below another.
        decode: makes a weight of some rows.
    """

    blocks: Sequence[Tensor]
    decode: Callable[[Tensor], GroupedWeight]

    @property
    def n(self) -> int:
        """Number of rows."""
        return sum(map(len, self.blocks))


class GroupedLinear(nn.Module):
    """`nn.Linear` in inference, on a weight in groups that is widened whenever it is used.

    Args:
        weight: what it multiplies with.
        bias: `[n]`, or None.
        dtype: of inputs and outputs.
    """

    integers: Tensor
    factors: Tensor
    order: Tensor | None
    bias: Tensor | None

    def __init__(self, weight: GroupedWeight | EncodedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.decode, self._num_blocks, self._rounds_inputs = None, 0, False
        if isinstance(weight, EncodedWeight):
            self.decode, self._num_blocks, self.out_features = weight.decode, len(weight.blocks), weight.n
            for index, blocks in enumerate(weight.blocks):
                self.register_buffer(f"blocks_{index}", blocks)
            weight = weight.decode(weight.blocks[0][:1])
        else:
            self.out_features = len(weight.integers)
        self.in_features, self.group, self.bits = weight.integers.shape[1], weight.group, weight.bits
        self.kind: Kind = weight.kind
        self.weight = without_values(weight.scales.to(dtype))
        if self.decode is None:
            assert weight.blocks is None, "weights in blocks are kept as their file has them"
            integers = weight.integers
            if self.bits == 4:
                integers = functional.pad(integers, (0, integers.shape[1] % 2))
                integers = integers[:, ::2] | integers[:, 1::2] << 4
            self.register_buffer("integers", integers)
            self.register_buffer("factors", weight.factors)
        self.register_buffer("order", weight.order)
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.eval()

    @property
    def blocks(self) -> list[Tensor]:
        """The rows of an encoded weight."""
        return [getattr(self, f"blocks_{index}") for index in range(self._num_blocks)]

    def grouped_weight(self, rows: slice = slice(None)) -> GroupedWeight:
        """Return the weight, or some rows of it, an integer in each byte."""
        if self.decode is not None:
            first, end, _ = rows.indices(self.out_features)
            return self.decode(rows_of(self.blocks, first, end))
        integers, factors = self.integers[rows], self.factors[rows]
        if self.bits == 4:
            integers = torch.stack([integers & 15, integers >> 4], dim=2).flatten(1)[:, : self.in_features]
        if self.kind == "minima":
            scales, zeros = factors.view(torch.float32).unbind(2)
        else:
            zeros = (factors & ~_SCALE).float() / ZEROS_PER_INTEGER[self.bits]
            scales = (factors & _SCALE).view(torch.float32)
        return GroupedWeight(integers, scales, zeros, self.group, self.bits, self.order, self.kind == "minima")

    def round_inputs(self) -> bool:
        """See `corellm.quantization.RoundsInputs`."""
        self._rounds_inputs = True
        return True

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., out_features]` for `[..., in_features]`."""
        if self._rounds_inputs and self.order is None:
            x = rounded_inputs(x, self.group)
        elif self._rounds_inputs:
            x = rounded_inputs(x[..., self.order], self.group)[..., self.order.argsort()]
        return functional.linear(x, self.grouped_weight().widened().to(x.dtype), self.bias)


def rows_of(weights: Sequence[Tensor], first: int, end: int) -> Tensor:
    """Return rows of weights one below another; those that lie apart are copied."""
    starts = [0, *accumulate(map(len, weights))]
    spans = [(max(0, first - start), end - start) for start in starts[:-1]]
    pieces = [weight[a:b] for weight, (a, b) in zip(weights, spans, strict=True) if a < min(b, len(weight))]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@dataclass(frozen=True)
class ToGroups:
    """Makes layers with weights in groups. See `corellm.quantization.Quantize`.

    Attributes:
        round: rounds a weight `[n, k]`, each row by itself.
        group, bits: as of `GroupedWeight`.
    """

    round: Callable[[Tensor], GroupedWeight]
    group: int
    bits: int

    def __call__(self, linear: nn.Linear) -> GroupedLinear:
        """Return the layer on its rounded weight."""
        return GroupedLinear(self.round(linear.weight.detach()), linear.bias, linear.weight.dtype)


def joined_groups(layers: Sequence[GroupedLinear]) -> GroupedLinear | None:
    """Return one layer with the outputs of several side by side; None if their groups, inputs or biases differ."""
    first = layers[0]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    kinds = {
        (layer.in_features, layer.group, layer.bits, layer.kind, layer.weight.dtype, layer.decode) for layer in layers
    }
    if len(kinds) > 1 or len(biases) not in (0, len(layers)) or not all(_same_order(first, layer) for layer in layers):
        return None
    whole: GroupedWeight | EncodedWeight
    if first.decode is not None:
        whole = EncodedWeight([blocks for layer in layers for blocks in layer.blocks], first.decode)
    else:
        weights = [layer.grouped_weight() for layer in layers]
        integers, scales, zeros = (
            torch.cat([getattr(weight, name) for weight in weights]) for name in ("integers", "scales", "zeros")
        )
        minima = first.kind == "minima"
        whole = GroupedWeight(integers, scales, zeros, first.group, first.bits, first.order, minima)
    return GroupedLinear(whole, torch.cat(biases) if biases else None, first.weight.dtype)


def _same_order(one: GroupedLinear, other: GroupedLinear) -> bool:
    if one.order is None or other.order is None:
        return one.order is other.order
    return torch.equal(one.order, other.order)

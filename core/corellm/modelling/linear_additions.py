"""Additions to the outputs of a model's linear layers: to each row of a step its own, as adapters of low rank are.

Knows the layers by their names, also where packing or fusing has replaced them; knows neither rows nor what is added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from corellm.errors import ContractError
from corellm.plain_linears import AsLinear, JoinedOutputs
from corellm.plugin.hookset import did_you_mean


class Addition(Protocol):
    """Adds to the outputs of one linear layer.

    It is called in every step, with a row for each token in the order of the flat batch. What it adds to a row must
    depend on that row and its sequence alone, bit for bit: each row's sums are made in one order, whatever the number
    of rows and whatever is added to others. A row without an addition stays as it is, or gets zeros.

    In a captured step (a CUDA graph, or a recorded plan on a CPU) there is a row for each sequence, in the order of the
    chunks, then perhaps rows of padding, which are ignored. This method is called when the step is captured, not when
    it is replayed. It therefore reads which sequence a row belongs to from a tensor at a fixed address, and
    `StepPart.lay_out` fills that tensor before each step. A part that cannot do so states `uncapturable`.
    """

    def __call__(self, x: Tensor, output: Tensor, /) -> None:
        """Add in place.

        Args:
            x: `[num_rows, in_features]`, the layer's input; not to be changed.
            output: `[num_rows, out_features]`, complete but for additions: activation, residual, rotation and the write
                to the cache come after. Its rows may lie apart in memory, between those of joined layers.
        """
        ...


PANEL = 16
"""Outputs whose second factors lie together."""
SomeRows = Tensor | slice
"""Which rows: their numbers, or all."""


class LowRankSlots(Protocol):
    """The factors of one layer, in slots; slot 0 has none. Tensors are read at every replay of a captured step.

    Attributes:
        a: `[num_slots, most, in_features]`, `most` a multiple of 4; factors of a lower rank are padded with zeros.
        b: `[num_slots, panels, most / group, 16, group]`, the second factors, padded with zeros: outputs in panels of
            16, and of each output as many ranks together as 32 bits hold: 1 in float32, 2 in types of 16 bits.
        ranks: `[num_slots]`, int64: of the factors in each slot; 0 for none.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor


class AddLowRank(Protocol):
    """Adds to the outputs of one linear layer products of low rank: to each row that of its own factors."""

    def __call__(self, x: Tensor, output: Tensor, slots: LowRankSlots, slot_of_row: Tensor, /) -> None:
        """Add in place, as an `Addition` does.

        Args:
            x: `[num_rows, in_features]`.
            output: `[num_rows, out_features]`.
            slots: the factors, in the type of both.
            slot_of_row: `[num_rows]`, int64.
        """
        ...


@dataclass(frozen=True)
class LowRankAddition:
    """An `Addition` of low rank. A layer that `TakesLowRank` makes the products inside its own.

    Args:
        slots: the factors.
        slot_of_row: the slot of each of so many rows; None if no row has factors.
        add: what adds to the outputs of other layers.
        apart: rows to whose outputs more happens than that factors are added, and what changes these in place. Such
            rows are of slot 0. It is called whenever the layer runs; in captured steps there are none.
    """

    slots: LowRankSlots
    slot_of_row: Callable[[int], Tensor | None]
    add: AddLowRank
    apart: Callable[[], Iterable[tuple[SomeRows, Addition]]] = tuple

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """See `Addition`."""
        if (slot_of_row := self.slot_of_row(len(x))) is not None:
            self.add(x, output, self.slots, slot_of_row)
        for rows, change in self.apart():
            some = output[rows]
            change(x[rows], some)
            output[rows] = some


@runtime_checkable
class TakesLowRank(Protocol):
    """A linear layer that makes products of low rank itself."""

    def take_low_rank(self, outputs: slice, addition: LowRankAddition, /) -> bool:
        """Add to some of the outputs from now on, before they are rounded; False if this layer cannot.

        A row of slot 0 that is not changed apart keeps its bits.
        """
        ...

    def without_low_rank(self, x: Tensor, /) -> Tensor:
        """Return the outputs without what was taken."""
        ...


class ExpertAddition(Protocol):
    """Adds to the outputs of a linear layer of each expert: what a child of experts with an `addition` calls."""

    def __call__(self, x: Tensor, output: Tensor, chosen: Tensor, places: Tensor, /) -> None:
        """Add in place, as an `Addition` does.

        Args:
            x, output: `[num_tokens * top_k, ...]`, in any order of rows; rows that no token has are of any values.
            chosen: `[num_tokens, top_k]`, int64: the experts of each token.
            places: `[num_tokens, top_k]`, int64: the row of each; -1 for none.
        """
        ...


class LinearSize(NamedTuple):
    """Widths of a linear layer."""

    in_features: int
    out_features: int


class AddedLinear(nn.Module):
    """A linear layer of any kind, perhaps several joined into one, with additions to its outputs.

    Args:
        linear: the layer.
    """

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.in_features, self.out_features = _size(linear)
        self._additions: list[tuple[slice, Addition]] = []
        self.eval()

    @property
    def weight(self) -> Tensor | nn.Module:
        """What the layer has by this name: models ask for its type and device."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | nn.Module:
        """What the layer has by this name."""
        return self.linear.bias

    def add(self, outputs: slice, addition: Addition) -> None:
        """Add to some of the outputs from now on, after earlier additions."""
        self._additions.append((outputs, addition))

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., out_features]` for `[..., in_features]`."""
        output: Tensor = self.linear(x)
        rows, sums = x.reshape(-1, self.in_features), output.view(-1, self.out_features)
        for outputs, addition in self._additions:
            addition(rows, sums[:, outputs])
        return output


class LinearAdditions:
    """The linear layers of a loaded model, to which additions can be attached.

    A layer without an addition stays the object that it is: it runs no line of this.

    Args:
        model: the model, after its layers were replaced by faster ones.
        decoder: the text decoder inside it.
        without: modules of the decoder whose layers are left out, as they run for each sequence alone.
        samples: whether tokens are sampled of what the model's output layer returns.

    Attributes:
        model, decoder, samples: as given.
        layers: those of the decoder that have additions, by the names they were added under.
    """

    def __init__(
        self, model: nn.Module, decoder: nn.Module, without: Iterable[nn.Module] = (), *, samples: bool = True
    ) -> None:
        self.model, self.decoder, self.samples = model, decoder, samples
        convolutions = (module for module in decoder.modules() if isinstance(module, AsLinear))  # these run on no token
        self._inside = set(decoder.modules()) - {
            inner for module in (*without, *convolutions) for inner in module.modules()
        }
        self.layers: dict[str, nn.Module] = {}
        self._is_closed = False

    def close(self) -> None:
        """Take no more additions: the load goes on to check those that there are."""
        self._is_closed = True

    @property
    def sizes(self) -> Mapping[str, LinearSize]:
        """Widths of the decoder's linear layers by name, as they were before fusing joined some.

        Names are those of the loaded model's modules: `model.layers.0.self_attn.q_proj`. Left out are layers
        that several modules share, and those inside of layers that keep a state.
        """
        return {name: place.size for name, place in self._places.items() if place.parent in self._inside}

    @property
    def outside(self) -> Mapping[str, LinearSize]:
        """Widths of the linear layers outside of the decoder: of encoders, of what connects them, the output layer.

        What their rows are, only those who run them know: `StepPart.encoding` and `StepPart.scoring` are around them.
        """
        decoders = set(self.decoder.modules())
        return {name: place.size for name, place in self._places.items() if place.parent not in decoders}

    def base(self, name: str) -> Callable[[Tensor], Tensor]:
        """Return what computes a layer's outputs without additions: `[n, out_features]` of `[n, in_features]`."""
        place = self._places[name]

        def outputs(x: Tensor) -> Tensor:
            layer = place.layer.linear if isinstance(place.layer, AddedLinear) else place.layer
            whole: Tensor = layer.without_low_rank(x) if isinstance(layer, TakesLowRank) else layer(x)
            return whole[:, place.outputs]

        return outputs

    def add(self, name: str, addition: Addition) -> None:
        """Add to the outputs of a layer in every step; several additions run in the order of these calls.

        Args:
            name: one of `sizes` or `outside`.
            addition: what to call. That steps run a decoder's layer on the rows of all their tokens is checked later in
                the load.

        Raises:
            ContractError: the model has no linear layer of this name, or the load is past `offer_step_part`.
        """
        if self._is_closed:
            raise ContractError(f"{name}: additions are attached in offer_step_part, before they are checked")
        if name not in self._places:
            raise ContractError(f"{name!r} is no linear layer of the model{did_you_mean(name, self._places)}")
        place = self._places[name]
        layer = place.layer
        if not _is_taken(layer, place.outputs, addition):
            if not isinstance(layer, AddedLinear):
                layer = AddedLinear(layer)
                setattr(place.parent, place.child, layer)
            layer.add(place.outputs, addition)
        if place.parent in self._inside:
            self.layers[name] = layer

    @cached_property
    def _places(self) -> dict[str, _Place]:
        named = list(self.model.named_modules(remove_duplicate=False))
        uses = Counter(module for _, module in named)
        left_out = set(self.decoder.modules()) - self._inside
        return {
            f"{prefix}.{name}" if prefix else name: place
            for prefix, parent in named
            if parent not in left_out
            for name, place in _linears_of(parent)
            if uses[parent] == uses[place.layer] == 1
        }


class _Place(NamedTuple):
    """Where a linear layer is, or the one that it was joined into."""

    parent: nn.Module
    child: str
    outputs: slice

    @property
    def layer(self) -> nn.Module:
        return self.parent.get_submodule(self.child)

    @property
    def size(self) -> LinearSize:
        return LinearSize(_size(self.layer).in_features, self.outputs.stop - self.outputs.start)


def _linears_of(parent: nn.Module) -> Iterator[tuple[str, _Place]]:
    """Yield a module's linear layers by the names that they had before some were joined."""
    joined: dict[str, JoinedOutputs] = getattr(parent, "joined_linears", {})
    for name, place in joined.items():
        yield name, _Place(parent, *place)
    whole = {place.child for place in joined.values()}
    for name, child in parent.named_children():
        if name not in whole and None not in _size(child) and _gives_rows(child):
            yield name, _Place(parent, name, slice(0, _size(child).out_features))


def _gives_rows(layer: nn.Module) -> bool:
    """Whether a layer gives outputs for rows of inputs: some routers are linear layers that choose experts by these."""
    if not isinstance(layer, nn.Linear) or type(layer).forward is nn.Linear.forward or layer.weight.itemsize < 2:
        return True
    try:
        with torch.inference_mode():
            output = layer(layer.weight.new_zeros(1, layer.in_features))
    except RuntimeError:  # it takes other inputs
        return False
    return isinstance(output, Tensor)


def _is_taken(layer: nn.Module, outputs: slice, addition: Addition) -> bool:
    """Have a layer make an addition inside its product, if it can."""
    if isinstance(addition, LowRankAddition) and isinstance(layer, TakesLowRank):
        return layer.take_low_rank(outputs, addition)
    return False


def _size(linear: nn.Module) -> LinearSize:
    """Return the widths that a layer states; None for each that it does not."""
    widths: list[Any] = [getattr(linear, name, None) for name in LinearSize._fields]
    return LinearSize(*widths)

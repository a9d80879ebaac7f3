"""How the tensors of a Hugging Face processor's output divide into items, and join again for an encoder batch.

Knows the layouts a processor uses (`batched`, `flat`, `shared`) and whose memory an item's tensors are. Knows no model,
no prompt and no placeholder. Everything here is plain data, so that an item can cross a process boundary. Importing it
imports no torch.

Memory: an item owns its tensors' storage. `split_items` copies a tensor whose storage is larger than the tensor
itself, so that a cached item never keeps the rest of its batch alive; a tensor that fills its storage is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index as as_int
from typing import TYPE_CHECKING, Any, Literal

from corellm.errors import ContractError
from corellm.media.type_checks import is_tensor
from corellm.multimodal.nested import nbytes, own_memory, same_values, shape_of, to_tensors

if TYPE_CHECKING:
    import numpy as np
    import torch

TEXT_TENSORS = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "text_replacement_offsets"}
)
"""What processors return about the text. Never part of an item, unless a config names it."""


@dataclass(frozen=True)
class MultiModalField:
    """What an item has to remember of its tensor's layout, to be joined with others."""

    modality: str
    kind: Literal["batched", "flat", "shared"]
    dim: int = 0
    """The dimension along which a `flat` tensor holds one item after another."""


@dataclass(frozen=True)
class MultiModalFieldConfig:
    """How one tensor of the processor's output divides into items. Made by the static methods, one per layout."""

    field: MultiModalField
    ranges: tuple[tuple[int, int | None], ...] = ()
    """Ranges of `flat`: each item's `[start, stop)`; a `stop` of None is the end."""
    batch_size: int = 0
    """Number of items that have the value of `shared`."""

    @staticmethod
    def batched(modality: str) -> MultiModalFieldConfig:
        """Dimension 0 counts the items; in a list, each element is an item, and shapes may differ.

        Example: `pixel_values: [num_images, 3, 336, 336]`.
        """
        return MultiModalFieldConfig(MultiModalField(modality, "batched"))

    @staticmethod
    def flat(modality: str, slices: Sequence[slice], dim: int = 0) -> MultiModalFieldConfig:
        """Items lie one after another along `dim`; `slices[i]` is item `i`. Together the slices cover the tensor.

        Example: `image_patches: [all_patches, 588]` with `slices=[slice(0, 40), slice(40, 100)]`.

        Raises:
            ContractError: a slice has a step, or a bound that is not an integer.
        """
        ranges = []
        for item, part in enumerate(slices):
            if not isinstance(part, slice) or part.step not in (None, 1):
                raise _contract(f"flat({modality!r}, ...): entry {item} is {part!r}, not a slice without a step")
            try:
                ranges.append((as_int(part.start or 0), None if part.stop is None else as_int(part.stop)))
            except TypeError as error:
                raise _contract(f"flat({modality!r}, ...): the bounds of {part!r} are not integers") from error
        return MultiModalFieldConfig(MultiModalField(modality, "flat", as_int(dim)), tuple(ranges))

    @staticmethod
    def flat_from_sizes(
        modality: str, sizes: Sequence[int] | torch.Tensor | np.ndarray[Any, Any], dim: int = 0
    ) -> MultiModalFieldConfig:
        """Like `flat`, with each item's length along `dim`: a list or a 1-D tensor. A length may be 0.

        Example: `image_patches: [100, 588]` with `sizes=[40, 60]`.

        Raises:
            ContractError: `sizes` is not one-dimensional, or holds something that is not a count.
        """
        ranges: list[tuple[int, int | None]] = []
        start = 0
        try:
            for size in sizes.tolist() if hasattr(sizes, "tolist") else sizes:
                if as_int(size) < 0:
                    raise ValueError(f"{size} is negative")
                ranges.append((start, start + as_int(size)))
                start += as_int(size)
        except (TypeError, ValueError) as error:
            raise _contract(
                f"flat_from_sizes({modality!r}, ...): sizes must be one count per item, got {sizes!r}"
            ) from error
        return MultiModalFieldConfig(MultiModalField(modality, "flat", as_int(dim)), tuple(ranges))

    @staticmethod
    def shared(modality: str, batch_size: int) -> MultiModalFieldConfig:
        """The same value belongs to each of `batch_size` items.

        Items whose shared values differ are never encoded together; see `group_joinable`.
        """
        return MultiModalFieldConfig(MultiModalField(modality, "shared"), batch_size=as_int(batch_size))


@dataclass(frozen=True, eq=False)
class MultiModalFieldElem:
    """One tensor of one item. Equal to another of the same layout, dtype, shape and values."""

    field: MultiModalField
    data: Any
    """A tensor; for `batched` without the item dimension, for `flat` with it. Or a list of tensors, or plain data."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MultiModalFieldElem):
            return NotImplemented
        return self.field == other.field and same_values(self.data, other.data)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors; plain data counts as nothing."""
        return nbytes(self.data)


class MultiModalKwargsItem(Mapping[str, MultiModalFieldElem]):
    """The tensors of one item by name: at least one, all of one modality. Never changed after it is made."""

    def __init__(self, elems: Mapping[str, MultiModalFieldElem]) -> None:
        modalities = {elem.field.modality for elem in elems.values()}
        if len(modalities) != 1:
            raise ValueError(f"an item needs tensors of exactly one modality, got {sorted(modalities)}")
        self._elems = dict(elems)
        self.modality: str = modalities.pop()

    def __getitem__(self, name: str) -> MultiModalFieldElem:
        return self._elems[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._elems)

    def __len__(self) -> int:
        return len(self._elems)

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name}: {shape_of(elem.data)}" for name, elem in self.items())
        return f"{type(self).__name__}({self.modality}; {tensors})"

    def get_data(self) -> dict[str, Any]:
        """The item's tensors by name, as the processor laid them out for this item."""
        return {name: elem.data for name, elem in self.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors: what it costs to cache it."""
        return sum(elem.nbytes for elem in self.values())


def split_items(
    hf_inputs: Mapping[str, Any],
    config: Mapping[str, MultiModalFieldConfig | None],
    *,
    ignored: Collection[str] = TEXT_TENSORS,
) -> dict[str, list[MultiModalKwargsItem]]:
    """Divide a processor's output into items.

    Args:
        hf_inputs: the processor's `BatchFeature`: torch tensors, numpy arrays or lists by name. A None is absent.
        config: how each tensor divides; None for one that is not needed. It may name tensors that are absent.
        ignored: further names that need no config; those in `TEXT_TENSORS` never need one.

    Returns:
        The items of each modality that has tensors here, in the processor's order.

    Raises:
        ContractError: a tensor that `config` does not mention, fields of a modality that disagree on how many items
            there are, slices that do not cover their tensor exactly once, or a value of a wrong type.
    """
    columns: dict[str, dict[str, list[MultiModalFieldElem]]] = {}
    for name, value in hf_inputs.items():
        if value is None:
            continue
        how = config.get(name)
        if how is not None and not isinstance(how, MultiModalFieldConfig):
            raise _contract(f"{name!r} must have a MultiModalFieldConfig, or None if it is not needed, got {how!r:.60}")
        if how is not None:
            column = [MultiModalFieldElem(how.field, data) for data in _split(name, value, how)]
            columns.setdefault(how.field.modality, {})[name] = column
        elif name not in config and name not in TEXT_TENSORS and name not in ignored:
            raise _contract(
                f"call_hf_processor returned {name!r} of shape {shape_of(value)}, which it does not mention; "
                f"say how it divides into items, e.g. {name!r}: MultiModalFieldConfig.batched(modality), "
                f"or {name!r}: None if the model does not need it"
            )
    return {modality: _to_items(modality, fields) for modality, fields in columns.items()}


def group_joinable(items: Sequence[MultiModalKwargsItem]) -> list[list[int]]:
    """Divide the indices of `items` into the fewest groups that `join_items` can join.

    Items of a group have the same modality, names, layouts and dtypes, equal `shared` values, and `flat` tensors that
    agree in every other dimension. Groups come in the order of their first item, indices ascend within a group.
    """
    groups: list[list[int]] = []
    alike: dict[object, list[list[int]]] = {}
    for i, item in enumerate(items):
        candidates = alike.setdefault(_join_key(item), [])
        group = next((group for group in candidates if _same_shared(items[group[0]], item)), None)
        if group is None:
            group = []
            candidates.append(group)
            groups.append(group)
        group.append(i)
    return groups


def join_items(
    items: Sequence[MultiModalKwargsItem], moved: Callable[[Any], Any] = lambda data: data
) -> dict[str, Any]:
    """Join items, of whatever requests, into the keyword arguments of one encoder batch.

    `batched` tensors are stacked if their shapes are equal, else listed; `flat` ones are concatenated along their
    dimension; a `shared` value is taken once. `split_items` undoes it. The result may share memory with the items:
    read it, do not write to it.

    Args:
        items: of one group of `group_joinable`.
        moved: returns an item's data on the encoder's device and in its type; they are joined there.

    Raises:
        ValueError: no items, or items that `group_joinable` would not put into one group.
    """
    if not items:
        raise ValueError("there are no items to join")
    key = _join_key(items[0])
    for item in items[1:]:
        if _join_key(item) != key or not _same_shared(items[0], item):
            raise ValueError(f"{items[0]!r} and {item!r} cannot be joined; divide them with group_joinable first")
    return {name: _join(elem.field, [item[name].data for item in items], moved) for name, elem in items[0].items()}


def _contract(message: str) -> ContractError:
    return ContractError(f"get_mm_fields_config: {message}")


def _split(name: str, value: Any, how: MultiModalFieldConfig) -> list[Any]:
    """One entry per item, each owning its memory."""
    try:
        data = to_tensors(value, items=how.field.kind == "batched")
    except (TypeError, ValueError) as error:
        raise _contract(f"{name!r} cannot become a tensor: {error}") from error
    if how.field.kind == "shared":
        return [own_memory(data)] * how.batch_size
    if how.field.kind == "flat":
        return _split_flat(name, data, how)
    if isinstance(data, list):
        return [own_memory(part) for part in data]
    if not is_tensor(data) or data.dim() == 0:
        raise _contract(f"{name!r} is batched, but {shape_of(value)} has no item dimension; use shared or flat")
    return [own_memory(part) for part in data.unbind(0)]


def _split_flat(name: str, tensor: Any, how: MultiModalFieldConfig) -> list[torch.Tensor]:
    dim = how.field.dim
    if not is_tensor(tensor) or not -tensor.dim() <= dim < tensor.dim():
        raise _contract(f"{name!r} is flat along dimension {dim}, which {shape_of(tensor)} does not have")
    size = tensor.shape[dim]
    parts = []
    end = 0
    for item, (start, stop) in enumerate(how.ranges):
        stop = size if stop is None else stop
        if start != end or not start <= stop <= size:
            raise _contract(
                f"{name!r}: item {item} is [{start}, {stop}) of {size} along dimension {dim}, and the item before "
                f"ends at {end}; slices must cover the tensor without gap or overlap"
            )
        parts.append(own_memory(tensor.narrow(dim, start, stop - start)))
        end = stop
    if end != size:
        raise _contract(
            f"{name!r}: the slices end at {end} of {size} along dimension {dim}; they must cover all of the tensor"
        )
    return parts


def _to_items(modality: str, fields: Mapping[str, list[MultiModalFieldElem]]) -> list[MultiModalKwargsItem]:
    first = next(iter(fields))
    for name, column in fields.items():
        if len(column) != len(fields[first]):
            raise _contract(
                f"the fields of {modality!r} disagree on how many items there are: "
                f"{first!r} has {len(fields[first])}, {name!r} has {len(column)}"
            )
    return [
        MultiModalKwargsItem({name: column[i] for name, column in fields.items()}) for i in range(len(fields[first]))
    ]


def _join(field: MultiModalField, parts: list[Any], moved: Callable[[Any], Any]) -> Any:
    import torch

    if field.kind == "shared":
        return moved(parts[0])
    parts = [moved(part) for part in parts]
    if field.kind == "flat":
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=field.dim)
    if not all(is_tensor(part) and part.shape == parts[0].shape for part in parts):
        return parts
    # One image is the common case, and its pixels are megabytes: a view will do.
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)


def _join_key(item: MultiModalKwargsItem) -> object:
    """Hashable; equal for items that differ at most in `shared` values and in what joining allows to differ."""
    return frozenset((name, elem.field, _joined_type(elem)) for name, elem in item.items())


def _joined_type(elem: MultiModalFieldElem) -> object:
    if elem.field.kind == "shared" or not is_tensor(elem.data):
        return None
    if elem.field.kind == "batched":
        return (elem.data.dtype, elem.data.device)
    shape = list(elem.data.shape)
    shape[elem.field.dim] = -1
    return (elem.data.dtype, elem.data.device, tuple(shape))


def _same_shared(left: MultiModalKwargsItem, right: MultiModalKwargsItem) -> bool:
    return all(same_values(elem.data, right[name].data) for name, elem in left.items() if elem.field.kind == "shared")

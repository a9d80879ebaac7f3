"""Values of a processor's argument to try: derived from its type and from its value in the checkpoint.

Knows how transformers writes types of arguments and sizes; knows no argument by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from corellm.multimodal.aspect_ratio import plain_size


def current_value(part: Any, name: str) -> Any:
    """Return an argument's value in a checkpoint, as a request would write it; None where it has none.

    Args:
        part: the image processor, video processor or feature extractor.
        name: the argument's.
    """
    value = plain_size(getattr(part, name, None))
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, (list, tuple)) else value


def values_to_try(kind: Any, current: Any) -> list[Any]:
    """Return values other than the current one, the likeliest to differ in effect first.

    Booleans are flipped, numbers and lists changed a little and downwards first, as sizes above the checkpoint's may be
    refused; of enumerations and literals the other members are returned. None are returned where the type says nothing.

    Args:
        kind: the argument's type, as annotated.
        current: its value in the checkpoint, or None.
    """
    kinds = list(_flat(kind))
    members = [value for one in kinds for value in _members(one)]
    if members and not isinstance(current, (Mapping, list)):
        return [value for value in members if value != current]
    if current is not None:
        return _near(current)
    if bool in kinds:
        return [True, False]
    if int in kinds:
        return [2, 7, 64]
    return [0.5, 1.5] if float in kinds else []


def scaled(value: Any, factor: float) -> Any:
    """Return a number, or a size whose sides are numbers, times a factor; None for any other value."""
    if isinstance(value, Mapping):
        sides = {side: scaled(one, factor) for side, one in value.items()}
        return None if None in sides.values() else sides
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def _flat(kind: Any) -> Iterator[Any]:
    """Yield the alternatives of an annotation."""
    if get_origin(kind) is Annotated:
        yield from _flat(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _flat(one)
    else:
        yield kind


def _members(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _near(value: Any) -> list[Any]:
    """Return values near a value."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [near for near in (value // 2, value * 3 // 4, value + 1) if near > 0 and near != value]
    if isinstance(value, float):
        return [value / 2, value * 1.5]
    if isinstance(value, list) and all(isinstance(one, (int, float)) for one in value):
        return [[one * 0.75 + 0.01 for one in value], [one * 1.25 + 0.02 for one in value]]
    if isinstance(value, list):
        parts = (value[:-1], value[1:], value[:1], value[-1:])
        return [part for place, part in enumerate(parts) if part != value and part not in parts[:place]]
    if isinstance(value, Mapping) and all(isinstance(side, int) for side in value.values()):
        every = [{side: one * part // 4 for side, one in value.items()} for part in (2, 3)]
        one_side = [{**value, side: value[side] * part // 4} for side in value for part in (2, 3)]
        return every + one_side if len(value) > 1 else every
    return []

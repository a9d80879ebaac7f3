"""`multi_modal_uuids`: ids that a request gives its items, one per item, in the order of the items.

An item whose media were sent before may be given as its id alone. Knows ids and counts, neither media nor caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from corellm.errors import InvalidParameterError
from corellm.multimodal.items import UuidItem

Uuids: TypeAlias = Mapping[str, Sequence[str | None]]
"""`{modality: an id or None for each item}`."""

_PARAM = "multi_modal_uuids"
_EMBEDS = "_embeds"


def read_uuids(given: Mapping[str, Any] | None) -> Uuids:
    """Uuids as lists; a single one may be given without a list. A modality with None is left out.

    Raises:
        InvalidParameterError: one is neither a string nor None, or empty.
    """
    uuids: dict[str, Sequence[str | None]] = {}
    for modality, value in (given or {}).items():
        if value is None:
            continue
        uuids[modality] = value if isinstance(value, (list, tuple)) else [value]
        for uuid in uuids[modality]:
            if uuid is not None and not isinstance(uuid, str):
                raise InvalidParameterError(
                    f"{_PARAM}[{modality!r}] must hold strings (or None), got {type(uuid).__name__}", param=_PARAM
                )
            if uuid == "":
                raise InvalidParameterError(
                    f"{_PARAM}[{modality!r}] holds an empty string; write None for an item without a uuid", param=_PARAM
                )
    return uuids


def check_uuids(uuids: Uuids, counts: Mapping[str, int]) -> None:
    """Check the uuids against the request's items.

    Raises:
        InvalidParameterError: uuids of a modality that the request does not have, or not one per item.
    """
    for modality, given in uuids.items():
        count = counts.get(modality, 0)
        if len(given) == count:
            continue
        if count:
            problem = f"has {len(given)} ids for {count} items; write one per item, None where it has none"
        else:
            present = ", ".join(name for name, items in counts.items() if items) or "no items at all"
            problem = f"names nothing: multi_modal_data has {present}"
        raise InvalidParameterError(f"{_PARAM}[{modality!r}] {problem}", param=_PARAM)


def with_uuid_items(mm_data: Any, uuids: Uuids) -> Any:
    """`multi_modal_data` with a `UuidItem` in place of None for an item that has a uuid.

    None under a modality's key is None for each of its items.
    """
    if not uuids or not isinstance(mm_data, Mapping):
        return mm_data
    marked = dict(mm_data)
    for modality, ids in uuids.items():
        given = mm_data.get(modality, ())
        if given is None and mm_data.get(modality + _EMBEDS) is None:
            given = [None] * len(ids)
        if isinstance(given, (list, tuple)) and len(given) == len(ids) and any(value is None for value in given):
            marked[modality] = [
                UuidItem(uuid) if value is None and uuid is not None else value
                for value, uuid in zip(given, ids, strict=True)
            ]
    return marked

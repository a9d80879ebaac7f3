"""Queries and documents: which are scored together, and both as one prompt.

Knows prompts as dictionaries; knows no tokenizer and no model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from corellm.errors import InvalidParameterError, PromptError
from corellm.media.frames import is_frame

_Query = TypeVar("_Query")
_Document = TypeVar("_Document")

PLACES = re.compile(r"(\{query\}|\{document\})")
"""Splits a template: its places stand between other text."""


def paired(queries: Sequence[_Query], documents: Sequence[_Document]) -> list[tuple[_Query, _Document]]:
    """Return the pairs to score: one query with all documents, or each with its own."""
    return list(zip([*queries] * (len(documents) // len(queries)), documents, strict=True))


def text_pair(query: Any, document: Any) -> dict[str, Any]:
    """Return one prompt of two texts.

    Raises:
        PromptError: one of them is no text.
    """
    query, document = _fields(query), _fields(document)
    return {**document, **query, "text_pair": document["prompt"]}


def join_pair(query: Any, document: Any, template: str) -> dict[str, Any]:
    """Return one prompt of a query and a document, with the items of both in the order of the template.

    Raises:
        InvalidParameterError: the template has not each place once.
        PromptError: one of them has no text.
    """
    sides = {"{query}": _fields(query), "{document}": _fields(document)}
    pieces = PLACES.split(template)
    if sorted(pieces[1::2]) != sorted(sides):
        raise InvalidParameterError(
            f"template must have {{query}} and {{document}}, once each; got {template!r:.100}", param="template"
        )
    ordered = [sides[place] for place in pieces[1::2]]
    joined = {key: value for side in ordered for key, value in side.items() if value not in (None, {})}
    if all(side.get("multi_modal_data") for side in ordered):
        joined |= _joined_items(ordered)
    return joined | {"prompt": "".join(sides[piece]["prompt"] if piece in sides else piece for piece in pieces)}


def _fields(side: Any) -> Mapping[str, Any]:
    fields = {"prompt": side} if isinstance(side, str) else side
    has_text = isinstance(fields, Mapping) and isinstance(fields.get("prompt"), str)
    if not has_text or fields.get("prompt_token_ids") is not None:
        raise PromptError(
            f"a model that reads query and document together needs text in both, got {side!r:.100}; give text, or "
            '{"prompt": text, "multi_modal_data": ...}'
        )
    return fields


def _joined_items(sides: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """Return the items of prompts that all have some, one after another, and a uuid or None for each."""
    data: dict[str, list[Any]] = {}
    uuids: dict[str, list[Any]] = {}
    for side in sides:
        for modality, given in side["multi_modal_data"].items():
            is_one = not isinstance(given, list) or (modality == "video" and any(map(is_frame, given)))
            items = [given] if is_one else given
            named = (side.get("multi_modal_uuids") or {}).get(modality) or [None] * len(items)
            data.setdefault(modality, []).extend(items)
            uuids.setdefault(modality, []).extend(named if isinstance(named, list) else [named])
    return {"multi_modal_data": data, "multi_modal_uuids": uuids}

"""A client's messages, checked: how many parts and items they have, and what their media are named by.

Knows limits; what messages and parts may have is known to `corellm.multimodal.chat`. Opens and fetches nothing. Text is
text: it is never searched for URLs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corellm.errors import MultiModalError, RequestError
from corellm.known_fields import FieldTable
from corellm.multimodal.chat.fields import MESSAGES, OUTPUT_PARTS, PARTS, TOOL_PARTS
from corellm.multimodal.chat.reading import Part, ReadMessages, read_messages
from corellm_server.errors import ApiError, as_api_error, unavailable
from corellm_server.limits import RequestLimits


@dataclass
class CheckedMessages:
    """Messages that were read."""

    messages: ReadMessages
    field: str = "messages"
    """Field of the request that has them."""

    @property
    def texts(self) -> list[str]:
        """All text, in order."""
        return [part.value for part in self._parts if part.modality == "text"]

    @property
    def sources(self) -> list[Part]:
        """The parts with media, in order."""
        return [part for part in self._parts if part.modality != "text"]

    @property
    def num_characters(self) -> int:
        """Characters of text, media not counted."""
        return sum(map(len, self.texts))

    @property
    def _parts(self) -> Iterator[Part]:
        return (part for message in self.messages for part in message["content"])

    def located(self, error: MultiModalError) -> ApiError:
        """The error for an item, with the part that it came from."""
        own = [source for source in self.sources if source.modality == error.modality]
        if error.status == 503:
            return unavailable(str(error))
        if error.item is None or not 0 <= error.item < len(own):
            return ApiError(error.status, str(error), param=self.field)
        return ApiError(error.status, f"{own[error.item].where}: {error}", param=own[error.item].where)


def messages_schema() -> dict[str, Any]:
    """The JSON schema of what `check_messages` takes, but for which fields go with which role and type of part."""
    parts = {
        **_described([*(part.table for part in PARTS.values()), *TOOL_PARTS.values()]),
        "type": {"enum": [*PARTS, *TOOL_PARTS, *sorted(OUTPUT_PARTS), None]},
    }
    content = {"anyOf": [{"type": "string"}, {"type": "object", "properties": parts}]}
    message = {
        **_described(MESSAGES.values()),
        "role": {"enum": [*MESSAGES]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": content}, {"type": "null"}]},
    }
    return {
        "type": "array", "minItems": 1, "items": {"type": "object", "properties": message, "required": ["role"]},
    }  # fmt: skip


def _described(tables: Iterable[FieldTable]) -> dict[str, Any]:
    """Fields with any value, with what is said of them."""
    described: dict[str, Any] = {}
    for table in tables:
        described |= {name: {"description": f"Ignored: {effect}."} for name, effect in table.ignored.items()}
        described |= {
            name: {"description": f"Not supported: {absent.instead}."} for name, absent in table.refused.items()
        }
        described |= {name: {"description": meaning} for name, meaning in table.taken.items()}
    return described


def check_messages(
    messages: Sequence[Mapping[str, Any]],
    limits: RequestLimits,
    item_limits: Mapping[str, int | None],
    *,
    field: str,
    numbers: Sequence[int] | None = None,
    joins_turns: bool = False,
) -> CheckedMessages:
    """The messages, with every part in one form.

    Args:
        messages: as a client sent them.
        limits: of messages, parts and items.
        item_limits: of the model, by modality; None for any number.
        field: of the request, that has the messages.
        numbers: of the field's elements that the messages come from; None for theirs.
        joins_turns: whether neighbours of the same role are one message.

    Raises:
        ApiError: a message or part is malformed, or there are too many.
    """
    if not messages:
        raise ApiError(400, f"{field} must have at least one message", param=field)
    if len(messages) > limits.max_messages:
        raise ApiError(400, f"{field} has {len(messages)}, {limits.max_messages} are allowed", param=field)
    parts = sum(map(_num_parts, messages))
    if parts > limits.max_parts:
        raise ApiError(400, f"{field} has {parts} parts, {limits.max_parts} are allowed", param=field)
    try:
        read = read_messages(messages, field=field, numbers=numbers, from_client=True)
    except RequestError as error:
        raise as_api_error(error) from None
    checked = CheckedMessages(_joined(read) if joins_turns else read, field)
    check_counts(checked.sources, limits.max_items, item_limits)
    return checked


def _joined(messages: ReadMessages) -> ReadMessages:
    """Messages of which no two neighbours are of the user, or of the assistant; what is malformed stays so."""
    joined = ReadMessages()
    for message in messages:
        if joined and joined[-1]["role"] == message["role"] in ("user", "assistant"):
            before = joined.pop()
            pairs = {name: (before[name], message[name]) for name in _JOINED if name in before and name in message}
            both = {name: one + two for name, (one, two) in pairs.items() if type(one) is type(two) in (list, str)}
            message = {**before, **message, **both}
        joined.append(message)
    return joined


_JOINED = ("content", "tool_calls", "reasoning_content")


def _num_parts(message: Mapping[str, Any]) -> int:
    """The parts of a message, with those of the results of tools among them."""
    content = message.get("content")
    if not isinstance(content, list):
        return 1
    results = [part["content"] for part in content if isinstance(part, dict) and isinstance(part.get("content"), list)]
    return len(content) + sum(map(len, results))


def check_counts(sources: Sequence[Part], max_items: int, item_limits: Mapping[str, int | None]) -> None:
    """Check the numbers of items against the server's limit and the model's.

    Raises:
        ApiError: an item that the model does not take, or one too many.
    """
    counts: dict[str, int] = {}
    for total, source in enumerate(sources, 1):
        if source.modality not in item_limits:
            takes = ", ".join(item_limits) or "text alone"
            raise _wrong(source.where, f"this model takes no {source.modality}; it takes {takes}")
        count = counts[source.modality] = counts.get(source.modality, 0) + 1
        limit = item_limits[source.modality]
        if limit is not None and count > limit:
            raise _wrong(source.where, f"this is item {count} of {source.modality}, and {limit} are allowed")
        if total > max_items:
            raise _wrong(source.where, f"this is item {total} of the conversation, and {max_items} are allowed")


def _wrong(where: str, message: str) -> ApiError:
    return ApiError(400, f"{where}: {message}", param=where)

"""Reads messages in all spellings that clients use: checks their fields by the tables, and finds text and media.

One parser for `LLM.chat` and the server. Opens no media, and knows neither guards nor templates nor limits. What
differs is whose messages they are: those of a client are JSON, an unknown field is refused in them, and media have
names; those of Python code may have further fields, which are the template's, and media in any form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corellm.errors import MediaError, PromptError
from corellm.known_fields import FieldTable
from corellm.multimodal.chat.fields import FILE, MEDIA_OBJECT, MESSAGES, OUTPUT_PARTS, PARTS, ROLES, SOURCE, TOOL_PARTS

_FORMAT = re.compile(r"[a-z0-9]{1,8}")
_DATA_URL = re.compile(r"data:(image|video|audio)/", re.IGNORECASE)
_MAX_UUID = 256


@dataclass(slots=True)
class Part:
    """A part of a message's content. Its media may be replaced by what they name."""

    where: str
    """`messages[i].content[j]`."""
    modality: str
    """`text`, or that of its item."""
    value: Any
    """Text; or media, None for those that are sent as a uuid alone."""
    uuid: str | None = None
    are_embeddings: bool = False


class ReadMessages(list[dict[str, Any]]):
    """Messages that were read: their content is a list of `Part`."""


def read_messages(
    messages: Sequence[Any],
    *,
    field: str = "messages",
    numbers: Sequence[int] | None = None,
    from_client: bool = False,
) -> ReadMessages:
    """Messages with the fields that have an effect, and their content as a list of `Part`.

    Args:
        messages: as they were given.
        field: of the request, that has them.
        numbers: of the field's elements that the messages come from; None for theirs.
        from_client: whether a client sent them.

    Raises:
        PromptError: a message or part is malformed; `param` names it.
        MediaError: a media part without media.
    """
    last = len(messages) - 1
    places = range(len(messages)) if numbers is None else numbers
    return ReadMessages(
        one
        for i, (place, message) in enumerate(zip(places, messages, strict=True))
        for one in _message(f"{field}[{place}]", message, is_last=i == last, from_client=from_client)
    )


def _message(where: str, given: Any, *, is_last: bool, from_client: bool) -> list[dict[str, Any]]:
    """A message, after those of tools whose results are among its parts."""
    if not from_client and callable(getattr(given, "model_dump", None)):  # a reply of OpenAI's client
        given = given.model_dump()
    if not isinstance(given, Mapping):
        raise _wrong(where, f"a message is an object with a role and content, got {given!r:.100}")
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        told = f"{where}.role must be one of {', '.join(ROLES)}; got {role!r:.100}"
        raise PromptError(told, param=f"{where}.role")
    is_output = role == "assistant"
    table = MESSAGES[role]
    kept = _kept(table, given, where, f"a message of role {role}", drops_unknown=is_output or not from_client)
    if not from_client:
        kept |= {name: value for name, value in given.items() if name not in table}
    if role == "tool" and from_client and "tool_call_id" not in kept:
        raise _wrong(f"{where}.tool_call_id", "a message of role tool says which of the tool_calls it answers")
    if is_output:
        _read_output(where, kept, is_last=is_last)
    content = kept.get("content", [] if is_output else None)  # a turn may be only tool calls
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        told = f"{where}.content must be text or a list of parts, got {content!r:.100}"
        raise PromptError(told, param=f"{where}.content")
    parts, calls, results = [], [], []
    thought = ""
    for j, part in enumerate(content):
        at, kind = f"{where}.content[{j}]", part.get("type") if isinstance(part, Mapping) else None
        if is_output and kind == "thinking" and isinstance(part.get("thinking"), str):
            thought += part["thinking"]
        if is_output and kind == "tool_use":
            calls.append(_tool_call(at, part))
        elif role == "user" and kind == "tool_result":
            results += _message(at, _tool_message(at, part), is_last=False, from_client=from_client)
        elif (found := _part(at, part, is_output=is_output, from_client=from_client)) is not None:
            parts.append(found)
    if calls:
        kept.setdefault("tool_calls", calls)
    if thought:
        kept.setdefault("reasoning_content", thought)
    rest = {**kept, "role": role, "content": parts}
    return [*results, rest] if parts or not results else results


def _read_output(where: str, kept: dict[str, Any], *, is_last: bool) -> None:
    """Read the fields of an assistant's message alone."""
    if "reasoning" in kept:
        kept["reasoning_content"] = kept.get("reasoning_content") or kept["reasoning"]
    prefix = kept.get("prefix", False)
    if not isinstance(prefix, bool):
        raise _wrong(f"{where}.prefix", "must be true or false")
    if prefix and not is_last:
        raise _wrong(f"{where}.prefix", "only the last message can be continued; leave it out here")


def read_text(where: str, given: Any) -> str:
    """The text of a client's part, which must be of text.

    Args:
        where: its place in the request.
        given: as it was sent.

    Raises:
        PromptError, MediaError: it is malformed, or of media; names it.
    """
    part = _part(where, given, is_output=False, from_client=True)
    if part is None or part.modality != "text":
        raise _wrong(where, "must be text")
    return str(part.value)


def _part(where: str, given: Any, *, is_output: bool, from_client: bool) -> Part | None:
    """A part; None for one that is only output."""
    if isinstance(given, str):
        return Part(where, "text", given)
    if not isinstance(given, Mapping):
        raise _wrong(where, f"a part is an object with a type, or text; got {given!r:.100}")
    kind = _type_of(given)
    if is_output and (lost := _media_beside(given, kind)):
        raise _wrong(where, f"a part of type {kind!r:.100} has {lost!r} beside it; give it a part of its own")
    if is_output and isinstance(kind, str) and kind in OUTPUT_PARTS:
        return None
    if not isinstance(kind, str) or kind not in PARTS:
        raise _wrong(where, f"type {kind!r:.100} is not known; known: {', '.join(PARTS)}")
    part = PARTS[kind]
    kept = _kept(part.table, given, where, f"a part of type {kind}", drops_unknown=is_output)
    found = [key for key in part.keys if key in kept]
    if len(found) > 1:
        raise _wrong(where, f"a part of type {kind} has {found[0]!r} or {found[1]!r}, not both")
    value = kept[found[0]] if found else None
    if part.modality == "text":
        if not isinstance(value, str):
            raise _wrong(where, f"a part of type {kind} has a string under {part.keys[0]!r}; got {value!r:.100}")
        return Part(where, "text", value)
    uuid = kept.get("uuid")
    if uuid is not None and not (isinstance(uuid, str) and 0 < len(uuid) <= _MAX_UUID):
        raise _wrong(where, f"uuid must be a string of 1 to {_MAX_UUID} characters")
    if part.modality == "file":
        return _file(where, kind, value, uuid)
    are_embeddings = kind.endswith("_embeds")
    media = _media(where, found[0] if found else kind, value, part.modality, is_named=from_client)
    if media is None and (uuid is None or are_embeddings):
        raise MediaError(f"{where}: a part of type {kind} needs {part.keys[0]!r}", modality=part.modality, param=where)
    return Part(where, part.modality, media, uuid, are_embeddings)


def _tool_call(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A part of type `tool_use` as one of the `tool_calls`."""
    kept = _kept(TOOL_PARTS["tool_use"], given, where, "a part of type tool_use", drops_unknown=True)
    for name, kind, told in (("id", str, "a string"), ("name", str, "a string"), ("input", Mapping, "an object")):
        if not isinstance(kept.get(name), kind):
            raise _wrong(f"{where}.{name}", f"must be {told}, got {kept.get(name)!r:.100}")
    return {"id": kept["id"], "type": "function", "function": {"name": kept["name"], "arguments": kept["input"]}}


def _tool_message(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A part of type `tool_result` as a message."""
    kept = _kept(TOOL_PARTS["tool_result"], given, where, "a part of type tool_result")
    if not isinstance(kept.get("tool_use_id"), str):
        raise _wrong(f"{where}.tool_use_id", f"must be a string, got {kept.get('tool_use_id')!r:.100}")
    return {"role": "tool", "tool_call_id": kept["tool_use_id"], "content": kept.get("content", "")}


def _media_beside(part: Mapping[str, Any], kind: Any) -> str | None:
    """The name of media that a part has beside what its type says, and that would be dropped."""
    own = PARTS[kind].keys if isinstance(kind, str) and kind in PARTS else ()
    media = (key for key, value in part.items() if value is not None and key in PARTS and key not in own)
    return next((key for key in media if PARTS[key].modality != "text"), None)


def _type_of(part: Mapping[str, Any]) -> Any:
    """A part's type, which may be left out if there is one key that is the name of a type."""
    if part.get("type") is not None:
        return part["type"]
    named = [key for key in part if key in PARTS]
    named = [key for key in named if part[key] is not None] or named
    return named[0] if len(named) == 1 else None


def _file(where: str, kind: str, value: Any, uuid: str | None) -> Part:
    if kind == "file":
        if not isinstance(value, Mapping):
            raise _wrong(where, "a part of type 'file' has an object with file_data under 'file'")
        value = _kept(FILE, value, f"{where}.file", "a file", of=where).get("file_data")
    found = _DATA_URL.match(value) if isinstance(value, str) else None
    if found is None:
        raise _wrong(
            where,
            f"a part of type {kind} needs file_data, a data: URL of an image, video or audio "
            "(data:audio/wav;base64,...); text goes into a part of type text, other URLs go into image_url, video_url "
            "or audio_url",
        )
    return Part(where, found[1].lower(), value, uuid)


def _media(where: str, key: str, media: Any, modality: str, *, is_named: bool) -> Any:
    """The media under a part's key: a URL, a path, or, unless media must have names, anything else."""
    if key == "source":
        media = _source(where, media, modality)
    if isinstance(media, Mapping) and (is_named or media.keys() & {"url", "data"}):
        kept = _kept(MEDIA_OBJECT, media, f"{where}.{key}", key, of=where)
        media = _data_url(where, key, kept, modality) if "data" in kept else kept.get("url")
    if is_named and media is not None and not isinstance(media, str):
        told = "base64 of a safetensors file" if key.endswith("_embeds") else "a URL, or an object with a url"
        raise _wrong(where, f"{key} must be {told}")
    if isinstance(media, str) and not media:
        raise _wrong(where, f"{key} is empty")
    return media


def _data_url(where: str, key: str, media: Mapping[str, Any], modality: str) -> str:
    data, form = media["data"], media.get("format")
    if "url" in media or not isinstance(data, str) or not isinstance(form, str):
        raise _wrong(where, f"{key} is {{data, format}}")
    if not _FORMAT.fullmatch(form):
        raise _wrong(where, f"the format of {key} is a word like wav or mp3")
    return f"data:{modality}/{form};base64,{data}"


def _source(where: str, given: Any, modality: str) -> str:
    """The URL of what is under `source`."""
    at = f"{where}.source"
    if not isinstance(given, Mapping):
        raise _wrong(at, f"a source is {{type, media_type, data}} or {{type, url}}, got {given!r:.100}")
    kept = _kept(SOURCE, given, at, "a source")
    kind = kept.pop("type", None)
    fields = {"base64": {"media_type", "data"}, "url": {"url"}}.get(kind if isinstance(kind, str) else "")
    if fields is None:
        raise _wrong(f"{at}.type", f"must be base64 or url, got {kind!r:.100}")
    for name in sorted(fields | kept.keys()):
        if name not in fields:
            raise _wrong(f"{at}.{name}", f"a source of type {kind} has none")
        if not isinstance(kept.get(name), str) or not kept[name]:
            raise _wrong(f"{at}.{name}", f"a source of type {kind} has a string here, got {kept.get(name)!r:.100}")
    if kind == "url":
        return str(kept["url"])
    if not re.fullmatch(rf"{modality}/[\w.+-]{{1,100}}", kept["media_type"], re.ASCII):
        raise _wrong(f"{at}.media_type", f"must be a MIME type like {modality}/..., got {kept['media_type']!r:.100}")
    return f"data:{kept['media_type']};base64,{kept['data']}"


def _wrong(where: str, message: str) -> PromptError:
    """The error for a place of a conversation."""
    return PromptError(f"{where}: {message}", param=where)


def _kept(
    table: FieldTable, given: Mapping[str, Any], where: str, thing: str, *, of: str = "", drops_unknown: bool = False
) -> dict[str, Any]:
    """The taken fields of an object.

    Args:
        table: its fields.
        given: the object.
        where: its place.
        thing: what it is called.
        of: the place that errors begin with, where that is not the object's own.
        drops_unknown: whether fields that are in no table are dropped.
    """

    def refusal(name: str, told: str) -> PromptError:
        why = f"{name} is not supported: {told}" if name in table.refused else f"{thing} has no {name!r:.100}{told}"
        return PromptError(f"{of or where}: {why}", param=f"{where}.{name:.100}")

    return table.kept(given, refusal, drops_unknown=drops_unknown)

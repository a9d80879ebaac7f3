"""The tables of a conversation: which fields messages and their parts have, and which of them have an effect.

Checks, the OpenAPI document, the pages and tests are made of it. Data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from corellm.known_fields import Absent, FieldTable

ROLES = ("system", "developer", "user", "assistant", "tool")
OPERATOR_ROLES = frozenset({"system", "developer"})
"""Roles whose text is the operator's own."""

_CACHED = "which prefix to cache; equal prefixes always share"
_TAKEN = {
    "role": f"one of {', '.join(f'`{role}`' for role in ROLES)}",
    "content": "text, or a list of parts; an assistant's may be absent",
    "name": "who speaks, for templates that tell names",
}
_IGNORED = {
    "cache_control": _CACHED,
    "id": "which message of an earlier response it is",
    "phase": "which part of a turn it is",
    "status": "whether it was completed",
}
_REFUSED = {"type": Absent(("text", "message"), "the model takes messages only; leave it out")}
_OF_ROLES = {
    "assistant": FieldTable(
        {
            **_TAKEN,
            "tool_calls": "what it called; arguments are JSON as text, or objects",
            "reasoning_content": "what it thought before, for templates that show it",
            "reasoning": "another name of `reasoning_content`",
            "prefix": "`true` in the last message: the output goes on with it, as with `continue_final_message`",
        },
        {
            **_IGNORED,
            "annotations": "sources of its text",
            "provider_specific_fields": "what a client library found beside the fields that it knows",
            "refusal": "why it declined",
            "thinking_blocks": "its thoughts in the form of another API",
        },
        {
            **_REFUSED,
            "audio": Absent((), "models generate text only; give the transcript as content"),
            "function_call": Absent((), "give it as one of the tool_calls"),
        },
    ),
    "tool": FieldTable({**_TAKEN, "tool_call_id": "which of the `tool_calls` it answers"}, _IGNORED, _REFUSED),
}
MESSAGES = {role: _OF_ROLES.get(role, FieldTable(_TAKEN, _IGNORED, _REFUSED)) for role in ROLES}
"""A message's fields, by its role."""

_MEDIA_IGNORED = {
    "cache_control": _CACHED,
    "detail": "in which size an image is looked at",
    "modalities": "what else an image stands for",
    "prompt_cache_breakpoint": _CACHED,
}
_TEXT_IGNORED = {
    "annotations": "sources of the text",
    "cache_control": _CACHED,
    "citations": "sources of the text",
    "logprobs": "log-probabilities of the text",
    "prompt_cache_breakpoint": _CACHED,
}
_FILE_REFUSED = {
    "file_id": Absent((), "there are no stored files; send the content as a data: URL"),
    "file_url": Absent((), "its modality is not known; send it as image_url, video_url or audio_url"),
}
_DATA = "a `data:` URL of an image, video or audio"
_UUID = "a name of the item: once sent with it, the item may be sent as its `uuid` alone"

FILE = FieldTable({"file_data": _DATA}, {"filename": "its name", "format": "its MIME type"}, _FILE_REFUSED)
"""What is under `file` in a part of that type."""
MEDIA_OBJECT = FieldTable(
    {"url": "a URL or path", "data": "base64, with `format`", "format": "a word like `wav`, for `data`"},
    {"detail": _MEDIA_IGNORED["detail"]},
)
"""What is under a media part's key, where that is not the URL itself."""
SOURCE = FieldTable(
    {
        "type": "`base64` or `url`",
        "media_type": "a MIME type like `image/png`, for `base64`",
        "data": "base64",
        "url": "a URL or path",
    },
    {},
    {"file_id": _FILE_REFUSED["file_id"]},
)
"""What is under `source` in a media part, in Anthropic's messages."""


@dataclass(frozen=True)
class PartType:
    """One type of part."""

    modality: str
    """`text`, or that of its item; `file` for what its data say."""
    keys: tuple[str, ...]
    """Where its text or media may be."""
    about: str

    @cached_property
    def table(self) -> FieldTable:
        """Its fields."""
        taken = {"type": "which one it is", **dict.fromkeys(self.keys, self.about)}
        if self.modality == "text":
            return FieldTable(taken, _TEXT_IGNORED)
        ignored = _MEDIA_IGNORED if "file_data" not in self.keys else {**_MEDIA_IGNORED, **FILE.ignored}
        return FieldTable({**taken, "uuid": _UUID}, ignored, _FILE_REFUSED)


def _media_types(modality: str) -> dict[str, PartType]:
    url, given = f"{modality}_url", f"input_{modality}"
    an = {"image": "an image", "video": "a video", "audio": "audio"}[modality]
    embeds = f"{modality}_embeds"
    return {
        modality: PartType(modality, (modality, url, "url", "path", "source"), an),
        url: PartType(modality, (url, modality), f"{an}, by `{{url}}` or its URL"),
        given: PartType(modality, (url, given, modality), f"{an}, by its URL, or as `{{data, format}}`"),
        embeds: PartType(modality, (embeds,), f"precomputed embeddings of {an}"),
    }


PARTS: dict[str, PartType] = {
    "text": PartType("text", ("text",), "text"),
    "input_text": PartType("text", ("text",), "text, in OpenAI's responses"),
    "output_text": PartType("text", ("text",), "text of an earlier response"),
    "refusal": PartType("text", ("refusal",), "text of an assistant that declined"),
    **_media_types("image"),
    "image_pil": PartType("image", ("image_pil", "image"), "an image of Pillow"),
    **_media_types("video"),
    **_media_types("audio"),
    "file": PartType("file", ("file",), "a file, as `{file_data}`"),
    "input_file": PartType("file", ("file_data",), "a file, in OpenAI's responses"),
}
"""A part's fields, by its type."""
OUTPUT_PARTS = frozenset({"reasoning", "redacted_thinking", "thinking"})
"""Types of an assistant's parts that are only output: they are dropped; the text of `thinking` becomes the message's
`reasoning_content`."""
TOOL_PARTS = {
    "tool_use": FieldTable(
        {
            "type": "which one it is",
            "id": "which call it is",
            "name": "of the tool that was called",
            "input": "arguments of the call, as an object",
        }
    ),
    "tool_result": FieldTable(
        {
            "type": "which one it is",
            "tool_use_id": "which `tool_use` it answers",
            "content": "what the tool returned: text, or a list of parts",
        },
        {
            "cache_control": _CACHED,
            "is_error": "whether the tool failed; the content says so",
            "toolset_name": "its set",
        },
    ),
}
"""Parts for tools in Anthropic's messages: of an assistant its `tool_calls`, of a user messages of role `tool`."""

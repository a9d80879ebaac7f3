"""Conversations for the rules, and what transformers' chat templates make of them.

Knows messages, templates and a loaded model's placeholder strings; knows no rule.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from corellm.multimodal.chat.fields import ROLES
from corellm_testing.subject import Part, Subject

Conversation = Sequence[tuple[str, Sequence[Part]]]
"""Roles, and the parts of their messages."""

_FORMS = (ROLES, ROLES[1:], ("system", "user"), ("user",), ())
"""Roles whose content a template may take as parts; that of the others is text."""

_OPERATORS = (
    "{% set places = PLACES %}{{ mood }}{% for tool in tools or [] %}{{ tool['function']['name'] }}{% endfor %}"
    "{% for message in messages %}[{{ message['role'] }}]CONTENT!{% endfor %}"
    "{% if add_generation_prompt %}[reply]{% endif %}"
)
_PARTS = (
    "{% for part in message['content'] %}"
    "{{ part['text'] if part['type'] == 'text' else places[part['type']] }}"
    "{% endfor %}"
)
_TEXT = "{{ message['content'] }}"


def items_of(subject: Subject) -> list[tuple[str, Any]]:
    """Return two items of each modality, in turns; a single one where a prompt may not have two."""
    found = [(m, subject.item(m, 10 * i + k)) for i in range(2) for k, m in enumerate(subject.modalities)]
    return found[:1] if any(subject.several(m, 2) < 2 for m in subject.modalities) else found


def conversations(subject: Subject) -> dict[str, Conversation]:
    """Return `{what is in it: conversation}`; a text occurs in no role's name and in no other text."""
    items = items_of(subject)
    first, others = items[:1], items[1:]
    return {
        "a system message and two turns": [
            ("system", ["Be brief"]),
            ("user", ["Ask one", *first, "about it"]),
            ("assistant", ["Say two"]),
            ("user", ["Ask three", *others]),
        ],
        "four turns": [
            *((role, [f"{said} {i}"]) for i in range(3) for role, said in (("user", "Ask"), ("assistant", "Say"))),
            ("user", ["Ask 3", *first]),
        ],
        "a developer's message": [("developer", ["Be kind"]), ("user", ["Ask one", *first])],
        "a tool's result": [
            ("user", ["Ask one"]),
            ("assistant", ["Say two"]),
            ("tool", ["See three"]),
            ("assistant", ["Say four"]),
            ("user", ["Ask five"]),
        ],
        "items before the text and behind it": [("user", [*first, "Ask one", *others])],
        "text between all items": [
            ("user", [*(part for i, item in enumerate(items) for part in (item, f"Ask of {i}")), "and at last"])
        ],
        "a message of items alone": [("user", items), ("user", ["Ask one"])],
        "empty parts and an empty message": [
            ("user", ["", "Ask one", "", *first, ""]),
            ("assistant", [""]),
            ("user", ["Ask two"]),
        ],
        "one text again and again": [
            ("user", ["Again"]),
            ("assistant", ["Again"]),
            ("user", ["Again", *first, "Again"]),
        ],
        "texts that end in marks": [
            ("system", ["(Be brief.)"]),
            ("user", ["Ask one...", *first]),
            ("assistant", ["Say two?!"]),
            ("user", ["Ask three ... (of them.)"]),
            ("assistant", ["...Say four..."]),
            ("user", ["Ask 'five'.."]),
        ],
        "texts of several lines": [
            ("user", ["Ask one\n\nof  these:\n\n\n\t- two", *first]),
            ("assistant", ["Say three\r\n\r\n  and four"]),
            ("user", ["Ask five:\n\n- six"]),
        ],
        "letters, braces and lines": [("user", ["{{ Größe }} \\n\n  {% 日本 %}", *first, "é"])],
    }


def example(subject: Subject) -> Conversation:
    """Return the conversation whose prompt an author declares, `chat_prompts`; its last message is the other."""
    items = items_of(subject)
    modalities = len(subject.modalities)
    asked: list[Part] = ["What is", " this "]
    for item in items[:modalities]:
        asked += [" beside ", item] if len(asked) > 2 else [item]
    return [
        ("system", ["Be brief."]),
        ("user", [*asked, "?"]),
        ("assistant", ["A circle"]),
        ("user", ["Which colour?"]),
        ("assistant", ["It is red."]),
        ("user", [*items[modalities : modalities + 1], "And now?"]),
    ]


def described(conversation: Conversation) -> str:
    """Return a conversation for a message: a line for each of its own, items by their modality."""
    return "\n".join(
        f"{role}: {' '.join(repr(part) if isinstance(part, str) else f'[{part[0]}]' for part in parts)}"
        for role, parts in conversation
    )


def texts_of(conversation: Conversation) -> list[str]:
    """Return the texts that are not empty, in order."""
    return [part for _, parts in conversation for part in parts if isinstance(part, str) and part]


def are_in(texts: Sequence[str], prompt: str) -> bool:
    """Whether a prompt has all texts, one after the other."""
    for text in texts:
        _, found, prompt = prompt.partition(text)
        if not found:
            return False
    return True


def messages_of(conversation: Conversation) -> list[dict[str, Any]]:
    """Return a conversation as clients send it."""
    return [{"role": role, "content": [_in_parts(part) for part in parts]} for role, parts in conversation]


def _in_parts(part: Part) -> dict[str, Any]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": part[0], part[0]: part[1]}


def media_of(conversation: Conversation) -> dict[str, list[Any]]:
    """Return `{modality: items in order}`."""
    media: dict[str, list[Any]] = {}
    for part in (part for _, parts in conversation for part in parts):
        if not isinstance(part, str):
            media.setdefault(part[0], []).append(part[1])
    return media


# --- templates ------------------------------------------------------------------------------------------------------


def operators_templates(subject: Subject) -> list[str]:
    """Return templates that no checkpoint has: one takes parts and writes their items' places, one takes text."""
    places = {name: subject.hooks.get_placeholder_str(modality=name, index=0) for name in subject.modalities}
    template = _OPERATORS.replace("PLACES", json.dumps(places))
    return [template.replace("CONTENT", content) for content in (_PARTS, _TEXT)]


def rendered(subject: Subject, conversation: Conversation, template: str, **variables: Any) -> str | None:
    """Return what transformers makes of a conversation by a template, or None where the template does not take it.

    Content is given in parts where the template takes them, else as text, with placeholder strings for the items.
    """
    texts = [text.strip() for text in texts_of(conversation)]
    for in_parts in _FORMS:
        given = _for_templates(subject, conversation, in_parts)
        try:
            text: str = subject.context.tokenizer.apply_chat_template(
                given, chat_template=template, tokenize=False, **variables
            )
        except (TemplateError, TypeError):  # it refuses the conversation, or this form of it
            continue
        if "'type'" not in text and all(part in text for part in texts):
            return text
    return None


def _for_templates(subject: Subject, conversation: Conversation, in_parts: Sequence[str]) -> list[dict[str, Any]]:
    counts = Counter[str]()
    messages: list[dict[str, Any]] = []
    for role, parts in conversation:
        listed = [_in_parts(part if isinstance(part, str) else (part[0], True)) for part in parts]
        text = "".join(_written(subject, part, counts) for part in parts)
        messages.append({"role": role, "content": listed if role in in_parts else text})
    return messages


def _written(subject: Subject, part: Part, counts: Counter[str]) -> str:
    if isinstance(part, str):
        return part
    counts[part[0]] += 1
    return subject.hooks.get_placeholder_str(modality=part[0], index=counts[part[0]] - 1) or ""

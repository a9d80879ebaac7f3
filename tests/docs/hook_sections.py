"""What the pages on hooks say of each: read off their Markdown, in the one form that all sections have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "hooks"
WHEN = ("before there is a model", "at load", "per request", "per item", "per encoder batch", "per step")
"""What a section may say of when its hook is asked."""

_SECTION = re.compile(r"^## (\w+)\n\n(.+?)\n\{ \.hook \}\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(
    r"`(?P<name>\w+)\((?P<arguments>[\w, ]*)\)` · (?P<kind>\*\*required\*\*|optional)(?P<static> · \*\*static\*\*)?"
    r" · asked\s(?P<asked>.+?) ·\s"
    r"\[reference\]\(\.\./\.\./reference/hookspecs\.md#corellm\.hookspecs\.(?P<anchor>\w+)\)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Section:
    """What a page says of one hook."""

    page: str
    arguments: list[str]
    required: bool
    static: bool
    asked: frozenset[str]
    text: str


def read_sections() -> dict[str, Section]:
    """Every hook's section, on whichever page it is.

    Raises:
        AssertionError: a section is not in the form that all have, or there are two of a hook.
    """
    found: dict[str, Section] = {}
    for page in sorted(FOLDER.glob("*.md")):
        if page.name == "index.md":
            continue
        text = page.read_text(encoding="utf-8")
        sections = _SECTION.findall(text)
        titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert [title for title, _, _ in sections] == titles, f"{page.name}: a section is no hook's, or in another form"
        for title, head, body in sections:
            assert title not in found, f"{title} has two sections"
            found[title] = _read(page.name, title, head, body)
    return found


def read_order() -> list[list[str]]:
    """The hooks of each row of the table that tells the order."""
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| (\[.+) \|$", text[text.index("| when | hooks |") :], re.MULTILINE)
    return [re.findall(r"\[`(\w+)`\]", row) for row in rows]


def _read(page: str, title: str, head: str, body: str) -> Section:
    told = _HEAD.fullmatch(head)
    assert told is not None, f"{page}: the line under {title} is not in the form of the others:\n{head}"
    assert title == told["name"] == told["anchor"], f"{page}: {title}, {told['name']} or {told['anchor']}?"
    asked = frozenset(re.findall(r"\*([^*]+)\*", told["asked"]))
    assert set() < asked <= set(WHEN), f"{page}: {title} is asked {set(asked)}"
    arguments = [argument for argument in told["arguments"].split(", ") if argument]
    return Section(page, arguments, told["kind"] != "optional", bool(told["static"]), asked, body)

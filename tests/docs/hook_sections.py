"""Sections of the pages on hooks, parsed from their Markdown, which has one form for all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "hooks"
WHEN = ("before loading", "at load", "per request", "per item", "per encoder batch", "per step")
"""When a hook is called: the terms that a section may use."""

_SECTION = re.compile(r"^## (\w+)\n\n(.+?)\n\{ \.hook \}\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(
    r"`(?P<name>\w+)\((?P<arguments>[\w, ]*)\)` · (?P<kind>\*\*required\*\*|optional)(?P<static> · \*\*static\*\*)?"
    r" · called\s(?P<called>.+?) ·\s"
    r"\[reference\]\(\.\./\.\./reference/hookspecs\.md#corellm\.hookspecs\.(?P<anchor>\w+)\)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Section:
    """What a page says about one hook."""

    page: str
    arguments: list[str]
    required: bool
    static: bool
    called: frozenset[str]
    text: str


def read_sections() -> dict[str, Section]:
    """Return every hook's section, from all pages.

    Raises:
        AssertionError: a section has another form, or a hook has two.
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
    """Return the hooks of each row of the table of the call order."""
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| (\[.+) \|$", text[text.index("| when | hooks |") :], re.MULTILINE)
    return [re.findall(r"\[`(\w+)`\]", row) for row in rows]


def _read(page: str, title: str, head: str, body: str) -> Section:
    told = _HEAD.fullmatch(head)
    assert told is not None, f"{page}: the line under {title} is not in the form of the others:\n{head}"
    assert title == told["name"] == told["anchor"], f"{page}: {title}, {told['name']} or {told['anchor']}?"
    called = frozenset(re.findall(r"\*([^*]+)\*", told["called"]))
    assert set() < called <= set(WHEN), f"{page}: {title} is called {set(called)}"
    arguments = [argument for argument in told["arguments"].split(", ") if argument]
    return Section(page, arguments, told["kind"] != "optional", bool(told["static"]), called, body)

"""Code blocks of Markdown pages: their place, language, attributes and the comments before them.

Knows the Markdown that these pages use; knows neither Python nor shells.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>[\w+-]*)(?P<attributes>[^`]*)$")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_COMMENT = re.compile(r"<!-- ?(?P<kind>[\w ]+?)(?::|\n| -->)(?P<text>.*?) ?-->", re.DOTALL)
_CONTAINER = re.compile(r"^ *(?:[-*+]|\d+\.|!!!|\?\?\?\+?|===|:) ")


@dataclass
class Block:
    """One code block."""

    page: str
    """Path from the repository's root."""
    line: int
    """Number of the block's first line, from 1."""
    language: str
    """Language of a fence, `""` if it has none; `"indented"` for a block without fences; `"setup"` for a hidden one."""
    text: str
    attributes: dict[str, str] = field(default_factory=dict)
    not_run: str = ""
    """Reason for not running it, from a comment before it."""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


def find_blocks(path: Path, page: str) -> list[Block]:
    """Return all code blocks of a page in their order, hidden ones included.

    Raises:
        ValueError: a fence that is not closed.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    number, reason, container = 0, "", False
    while number < len(lines):
        line = lines[number]
        if line.startswith("<!--"):
            number, comment = _comment(lines, number)
            kind, text = (comment["kind"], comment["text"]) if comment else ("", "")
            if kind == "setup":
                found.append(Block(page, number, "setup", text.strip("\n") + "\n"))
            reason = text.strip() if kind == "not run" else reason
        elif fence := _FENCE.match(line):
            end = _end_of(lines, number, fence, page)
            text = "".join(line.removeprefix(fence["indent"]) + "\n" for line in lines[number + 1 : end])
            attributes = dict(_ATTRIBUTE.findall(fence["attributes"]))
            found.append(Block(page, number + 2, fence["language"], text, attributes, reason))
            number, reason = end + 1, ""
        elif line.startswith("    ") and not container and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = textwrap.dedent("\n".join(lines[number:end])).strip("\n") + "\n"
            found.append(Block(page, number + 1, "indented", text, {}, reason))
            number, reason = end, ""
        else:
            if line.strip():
                reason = ""
                if not line.startswith("    "):
                    container = bool(_CONTAINER.match(line)) or (container and line.startswith(" "))
            number += 1
    return found


def _comment(lines: list[str], start: int) -> tuple[int, re.Match[str] | None]:
    """Return the number of the line after a comment, and the comment."""
    end = next((i for i in range(start, len(lines)) if "-->" in lines[i]), len(lines) - 1)
    return end + 1, _COMMENT.match("\n".join(lines[start : end + 1]))


def _end_of(lines: list[str], start: int, fence: re.Match[str], page: str) -> int:
    for number in range(start + 1, len(lines)):
        if lines[number].strip() == fence["ticks"]:
            return number
    raise ValueError(f"{page}:{start + 1}: this fence is not closed")

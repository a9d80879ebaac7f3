"""Includes files in a page: drawings, and Markdown of the repository with its links changed to links of the site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#+) (.+?)(?: \{.*\})?$")

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "plugins/index.md",
    "CHANGELOG.md": "changelog.md",
    "examples/plugin-template/README.md": "plugins/template.md",
    "core/corellm/hookspecs.py": "reference/hookspecs.md",
    "core/corellm/config.py": "operate/index.md",
    "core/corellm/errors.py": "reference/errors.md",
}
"""`{file: page of the site that shows it}`, without files of `docs/` and the plugins' READMEs."""


def diagram(name: str) -> str:
    """Return a drawing, inline, so that it has the page's colours."""
    svg = (ROOT / "docs" / "img" / f"{name}.svg").read_text(encoding="utf-8")
    return f'<figure class="diagram">\n{svg.strip()}\n</figure>'


def part(page: str, file: str, heading: str | None = None) -> str:
    """Return a Markdown file without its title, or the text below one of its headings; headings begin at level 2.

    Args:
        page: the page that includes it, below `docs/`.
        file: path from the repository's root.
        heading: of the part; None for all of it.

    Raises:
        KeyError: there is no such heading.
    """
    lines, level = _lines_below((ROOT / file).read_text(encoding="utf-8").splitlines(), heading)
    return _with_site_links(_with_headings(lines, 1 - level), page, file)


def chapter(page: str, file: str) -> str:
    """Return a Markdown file with its title, at level 2."""
    return _with_site_links(_with_headings((ROOT / file).read_text(encoding="utf-8").splitlines(), 1), page, file)


def _lines_below(lines: list[str], heading: str | None) -> tuple[list[str], int]:
    """Return the lines below a heading (None for the title), and its level."""
    start, level = None, 0
    for i, found in _headings(lines):
        if start is not None and len(found[1]) <= level:
            return lines[start:i], level
        if start is None and heading in (None, found[2]):
            start, level = i + 1, len(found[1])
    if start is None:
        raise KeyError(f"no heading {heading!r}")
    return lines[start:], level


def _with_headings(lines: list[str], deeper: int) -> list[str]:
    """Return the lines with every heading `deeper` levels deeper."""
    shifted = list(lines)
    for i, found in _headings(lines):
        shifted[i] = "#" * (len(found[1]) + deeper) + lines[i][len(found[1]) :]
    return shifted


def _headings(lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the index and match of every heading; `#` in a code block begins a comment."""
    fenced = False
    for i, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        found = _HEADING.match(line)
        if found is not None and not fenced:
            yield i, found


def _with_site_links(lines: list[str], page: str, file: str) -> str:
    return _LINK.sub(lambda found: _site_link(found, page, file), "\n".join(lines).strip())


def _site_link(found: re.Match[str], page: str, file: str) -> str:
    """Return a link of the repository as one of the site, or only its text if the site has no such page."""
    words, target = found.groups()
    if target.startswith(("#", "http://", "https://")):
        return found[0]
    path, hash_, anchor = target.partition("#")
    resolved = os.path.normpath(PurePosixPath(file).parent / path)
    home = PAGES.get(resolved)
    if home is None and resolved.startswith("docs/"):
        home = resolved.removeprefix("docs/")
    if home is None and re.fullmatch(r"plugins/\w+/README.md", resolved):
        home, hash_, anchor = "run/families.md", "#", f"corellm-{PurePosixPath(resolved).parts[1].replace('_', '-')}"
    if home is None:
        return words
    return f"[{words}]({os.path.relpath(home, PurePosixPath(page).parent)}{hash_}{anchor})"

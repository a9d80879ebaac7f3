"""Handles the events of mkdocs; `directives` generates the parts of pages."""

from __future__ import annotations

import html as markup
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def on_config(config: Any) -> Any:
    """Put the checkout on the path, so that `docs.generate` can be imported."""
    sys.path.insert(0, str(ROOT))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with its generated parts."""
    from docs.generate.directives import expand

    return expand(markdown, page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with each cell of a table labelled by its column's head: a phone shows rows one cell a line."""
    return re.sub(r"<table>.*?</table>", lambda found: _label_cells(found[0]), html, flags=re.DOTALL)


def _label_cells(table: str) -> str:
    heads = [re.sub(r"<[^>]+>", "", head).strip() for head in re.findall(r"<th\b[^>]*>(.*?)</th>", table, re.DOTALL)]
    labels = [f' data-label="{markup.escape(markup.unescape(head))}"' if head else "" for head in heads]

    def label_row(row: re.Match[str]) -> str:
        of_columns = iter(labels)
        return re.sub(r"<td\b", lambda cell: cell[0] + next(of_columns, ""), row[0])

    return re.sub(r"<tr>.*?</tr>", label_row, table, flags=re.DOTALL)

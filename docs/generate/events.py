"""Handles the events of mkdocs; `directives` generates the parts of pages."""

from __future__ import annotations

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

"""What mkdocs calls while it builds. Knows its events; what a page has generated is `directives`' business."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def on_config(config: Any) -> Any:
    """Put the checkout on the path, so that the modules beside this one are found under the names tests know."""
    sys.path.insert(0, str(ROOT))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what a page asks to be generated."""
    from docs.generate.directives import expand

    return expand(markdown, page.file.src_uri)

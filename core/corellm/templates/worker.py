"""The child process that renders templates: `python -m corellm.templates.worker`.

A question is `{"template", "variables", "max_chars"}`, the answer the text. Imports Jinja2 and the standard library.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Template

from corellm.children.serving import serve
from corellm.templates.environment import make_environment

MAX_MEMORY = 1 << 30
"""Bytes of address space. What a template builds in one expression is bounded by this alone."""


def render(question: dict[str, Any]) -> str:
    """Render a template, no longer than `max_chars`.

    Raises:
        ValueError: whatever the template raised, or its text is too long.
    """
    pieces: list[str] = []
    left = question["max_chars"]
    try:
        for piece in _compiled(question["template"]).generate(question["variables"]):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                break
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # whatever a template can raise
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    if left < 0:
        raise ValueError(f"its text is longer than {question['max_chars']} characters")
    return "".join(pieces)


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    return _ENVIRONMENT.from_string(template)


_ENVIRONMENT = make_environment()

if __name__ == "__main__":
    serve(render, max_memory=MAX_MEMORY)

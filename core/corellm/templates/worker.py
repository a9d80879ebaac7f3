"""The child process that renders templates: `python -m corellm.templates.worker`.

A request is `{"template", "variables", "max_chars"}`, the result the text. Imports Jinja2 and the standard library.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Template

from corellm.children.serving import serve
from corellm.templates.environment import make_environment

MAX_MEMORY = 1 << 30
"""Bytes of address space; the only limit on what a template builds in one expression."""


def render(request: dict[str, Any]) -> str:
    """Return a rendered template of at most `max_chars` characters.

    Raises:
        ValueError: the template raised, or its text is too long.
    """
    pieces: list[str] = []
    left = request["max_chars"]
    try:
        for piece in _compiled(request["template"]).generate(request["variables"]):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                break
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # whatever a template can raise
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    if left < 0:
        raise ValueError(f"its text is longer than {request['max_chars']} characters")
    return "".join(pieces)


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    return _ENVIRONMENT.from_string(template)


_ENVIRONMENT = make_environment()

if __name__ == "__main__":
    serve(render, max_memory=MAX_MEMORY)

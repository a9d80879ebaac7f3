"""How this project's docstrings are read: `Example:` begins examples, as `Examples:` does elsewhere. For griffe."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Reads the word in the singular."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called with everything that may have a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)

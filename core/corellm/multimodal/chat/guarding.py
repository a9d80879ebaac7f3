"""Text that must not become special tokens: a guard character splits every literal of one.

The chat template renders the guards with the text. The tokenizer then gets the pieces between them, none of which can
match a special token. Knows no tokenizer and no roles.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from corellm.errors import PromptError

GUARD = "\ue0c0"
"""A private-use character that no special token contains. Text loses any that it has."""

TEXT_BOUNDARY = GUARD
"""Boundary in a prompt that `make_context` writes: texts beside it are tokenized apart. It is no part of the text."""


class Guard:
    """Guards text against a set of literals, in one pass.

    Args:
        literals: strings that would become special tokens. Those of one character cannot be guarded.
    """

    def __init__(self, literals: Collection[str]) -> None:
        self.literals = frozenset(literal for literal in literals if len(literal) > 1)
        self._pattern = re.compile(_first_characters(self.literals)) if self.literals else None
        self._endings: dict[str, list[str]] = {}
        """`{beginning of a literal: its possible endings}`."""
        for literal in self.literals:
            for i in range(1, len(literal)):
                self._endings.setdefault(literal[:i], []).append(literal[i:])
        self._longest = max(map(len, self.literals), default=0)

    def text(self, text: str) -> str:
        """`text` with a guard after the first character of every literal, overlapping ones included."""
        text = text.replace(GUARD, "")
        return text if self._pattern is None else self._pattern.sub(rf"\g<0>{GUARD}", text)

    def value(self, value: Any, where: str) -> Any:
        """A JSON value with all its strings guarded, keys too.

        Raises:
            PromptError: a part of it is not JSON; names the place.
        """
        try:
            return self._value(value, where)
        except RecursionError:
            raise PromptError(f"{where} is nested too deeply") from None

    def _value(self, value: Any, where: str) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {self.text(key): self._value(item, f"{where}.{key:.50}") for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._value(item, f"{where}[{i}]") for i, item in enumerate(value)]
        raise PromptError(
            f"{where:.200} is a {type(value).__name__}, which chat templates do not take; give strings, numbers, "
            "lists and dicts with strings for keys"
        )

    def joins(self, left: str, right: str) -> bool:
        """Whether a literal may begin at the end of `left` and continue in `right`."""
        return any(
            right.startswith(ending) or ending.startswith(right)
            for i in range(1, min(self._longest, len(left) + 1))
            for ending in self._endings.get(left[-i:], ())
        )


def _first_characters(literals: Collection[str]) -> str:
    """A pattern for the first character of every literal; matching takes the same time for one literal or many."""
    tree: dict[str, Any] = {}
    for literal in literals:
        node = tree
        for character in literal:
            node = node.setdefault(character, {})
        node[""] = {}
    return "|".join(f"{re.escape(first)}(?={_any_of(rest)})" for first, rest in sorted(tree.items()))


def _any_of(tree: Mapping[str, Any]) -> str:
    """A pattern for the strings of a tree of characters; an empty key ends a string."""
    if "" in tree:
        return ""
    branches = [re.escape(character) + _any_of(rest) for character, rest in sorted(tree.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def unguarded(text: str) -> str:
    """`text` without its guards."""
    return text.replace(GUARD, "")


def pieces(text: str) -> Sequence[str]:
    """The text between guards, as the tokenizer gets it."""
    return [piece for piece in text.split(GUARD) if piece]

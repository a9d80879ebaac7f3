"""An extension that registers logits processors, for tests: it needs nothing but the standard library and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corellm.errors import InvalidParameterError
from corellm.hookspecs import hookimpl


class Processors:
    """Processors by name."""

    @hookimpl
    def register_logits_processors(self, tokenizer: Any, vocab_size: int) -> dict[str, Any]:
        """`only` lets tokens of one remainder come; `broken` fails at an output's third token."""
        return {"only": make_only, "broken": make_broken}


def make_only(arguments: Mapping[str, Any]) -> Any:
    """Make a processor that lets only tokens of a remainder come, by a divisor."""
    if not {*arguments} <= {"divisor"}:
        raise InvalidParameterError(f"only takes divisor, got {', '.join(arguments)}", param="logits_processors")
    divisor = arguments.get("divisor", 2)

    def only(prompt: list[int], output: list[int], logits: Any) -> Any:
        rest = (len(prompt) + len(output)) % divisor
        for other in range(divisor):
            if other != rest:
                logits[other::divisor] = float("-inf")
        return logits

    return only


def make_broken(arguments: Mapping[str, Any]) -> Any:
    """Make a processor that fails."""

    def broken(output: list[int], logits: Any) -> Any:
        if len(output) == 2:
            raise KeyError("lost")
        return logits

    return broken

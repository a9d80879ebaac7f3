"""Parsers by name, of this distribution and of extensions, and which one a model has.

The operator's choice comes first, then the adapter's, then what the chat template shows. Knows what parsers state, and
makes none.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Generic, TypeVar

from corellm.errors import ConfigError, ContractError
from corellm.plugin.extensions import is_text, offers_by_name
from corellm_server.parsing.reader import GeneratorParser
from corellm_server.reasoning.marked import ReasoningParser
from corellm_server.tools.calls import ToolParser

_Parser = TypeVar("_Parser", bound=GeneratorParser)
NO_PARSER = "none"
"""The name for no parser at all."""


@dataclass(frozen=True)
class _Kind(Generic[_Parser]):
    """One kind of parsers."""

    hook: str
    base: type[_Parser]
    option: str


TOOLS = _Kind("register_tool_parsers", ToolParser, "tool_call_parser")
REASONING = _Kind("register_reasoning_parsers", ReasoningParser, "reasoning_parser")


class Parsers(Generic[_Parser]):
    """The parsers of one kind.

    Args:
        kind: of which.
        chosen: the operator's choice, by name; None for none.
        of_adapter: the adapter's.

    Raises:
        ConfigError: there is no parser of the name that the operator chose; names all.
        ContractError: none of the name that the adapter states; or an extension's is no parser.
    """

    def __init__(self, kind: _Kind[_Parser], chosen: str | None = None, of_adapter: str | None = None) -> None:
        self._known = _offered(kind)
        self.names = sorted(self._known)
        name = chosen or of_adapter
        if name is not None and name not in (*self.names, NO_PARSER):
            told = f"{kind.option}: there is no parser {name!r:.100}; there are {', '.join(self.names)}, {NO_PARSER}"
            raise ConfigError(told) if chosen else ContractError(f"the adapter's {told}")
        self._is_fixed = name is not None
        self._fixed = None if name is None else self._known.get(name)

    def of(self, template: str | None) -> type[_Parser] | None:
        """The parser of a model with a chat template: of those that its text shows the one with most to show."""
        if self._is_fixed or template is None:
            return self._fixed
        shown = [one for one in self._known.values() if one.TEMPLATE and all(part in template for part in one.TEMPLATE)]
        return max(shown, key=lambda one: len(one.TEMPLATE), default=None)


def _offered(kind: _Kind[_Parser]) -> dict[str, type[_Parser]]:
    """All parsers of a kind that installed extensions offer.

    Raises:
        ContractError: one is no parser, or two have the same name.
    """
    found: dict[str, type[_Parser]] = {}
    for extension, name, location in offers_by_name(kind.hook, is_text, "have a parser"):
        if name == NO_PARSER:
            raise ContractError(f"{extension} and corellm-server both have a parser {name!r}; uninstall one")
        found[name] = _loaded(kind, location, extension)
    return found


def _loaded(kind: _Kind[_Parser], location: str, extension: str) -> type[_Parser]:
    module, _, name = location.partition(":")
    try:
        parser = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ContractError(
            f"{extension}: {kind.hook} names {location!r}, which cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(parser, type) and issubclass(parser, kind.base)):
        base = f"{kind.base.__module__}.{kind.base.__qualname__}"
        raise ContractError(f"{extension}: {location!r} is no subclass of {base}")
    if not parser.MARKERS or not all(isinstance(one, str) and one for one in (*parser.MARKERS, *parser.TEMPLATE)):
        raise ContractError(f"{extension}: {location!r} must have MARKERS, strings that are not empty")
    return parser

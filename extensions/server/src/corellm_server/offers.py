"""What extensions offer behind `corellm serve` and `corellm batch`: options of their own, and what they lead to.

Every command line is read with them, so importing it imports nothing but errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corellm.errors import CorellmError

if TYPE_CHECKING:
    from corellm.serving import EngineClient


@dataclass(frozen=True)
class WantedEngine:
    """An engine for one of a server's models."""

    name: str
    """Name by which clients ask for the model; empty for an only one."""
    options: Any
    """Options, an object of the offer's class."""
    engine_args: Mapping[str, Any]
    """Arguments of `EngineConfig.from_kwargs`."""

    @contextmanager
    def named(self) -> Iterator[None]:
        """Have an error, as of a wrong checkpoint, say which of several models it is of."""
        try:
            yield
        except CorellmError as error:
            if self.name:
                error.args = (f"models: {self.name:.100}: {error}", *error.args[1:])
            raise


@dataclass(frozen=True)
class CommandOffer:
    """Options that a command has with an extension."""

    title: str
    """What the options are called in the command's help."""
    options: type
    """A frozen dataclass whose fields are the options, each followed by a docstring."""
    switch: str
    """The option that asks for the offer by any value but its default; the others need it."""


@dataclass(frozen=True)
class EngineOffer(CommandOffer):
    """Options of `corellm serve` that put another engine behind it."""

    opened: Callable[[Sequence[WantedEngine]], AbstractContextManager[Sequence[EngineClient]]]
    """Opens the engines of one or more models of a server, in their order; they end with the context."""


@dataclass(frozen=True)
class BatchOffer(CommandOffer):
    """Options of `corellm batch` that have its requests done elsewhere."""

    run: Callable[..., int]
    """Does what has no result yet; returns the exit status. Called with the options, the server's configuration, the
    arguments of `EngineConfig.from_kwargs`, the options of inputs without requests, and the paths of input and
    output."""

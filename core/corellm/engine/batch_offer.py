"""Another way to do the requests of a file, as an extension offers it: options of its own, and what runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BatchOffer:
    """Options of `corellm batch` that have its requests done elsewhere."""

    title: str
    """What the options are called in the command's help."""
    options: type
    """A frozen dataclass whose fields are the options, each followed by a docstring."""
    is_wanted: Callable[[Any], bool]
    """Whether options, an instance of the class, ask for this."""
    run: Callable[..., int]
    """Does what has no result yet; returns the exit status. Called with the options, the server's configuration, the
    arguments of `EngineConfig.from_kwargs`, and the paths of input and output."""

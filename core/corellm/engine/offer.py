"""Another engine behind a server, as an extension offers it: options of its own, and what opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from corellm.engine.client import EngineClient


@dataclass(frozen=True)
class EngineOffer:
    """Options of `corellm serve` that put another engine behind it."""

    title: str
    """What the options are called in the command's help."""
    options: type
    """A frozen dataclass whose fields are the options, each followed by a docstring."""
    is_wanted: Callable[[Any], bool]
    """Whether options, an instance of the class, ask for this engine."""
    opened: Callable[[Any, Mapping[str, Any]], AbstractContextManager[EngineClient]]
    """Opens the engine by its options and the arguments of `EngineConfig.from_kwargs`; it ends with the context."""

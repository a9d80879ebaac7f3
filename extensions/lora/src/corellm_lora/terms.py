"""What a loaded model takes of adapters: which modules there are, how wide they are, how high a rank may be.

The process that has the model writes it down; the one that prepares prompts reads it. Knows no files and no weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

_KEY = "corellm_lora"
_OUTER = ("model", "language_model")
"""Modules around a decoder that releases of transformers, and classes of one model, have in different order."""
_INNER = "vision_model"
"""A module inside of vision towers that some releases of transformers have, and others do not."""


@dataclass(frozen=True)
class Terms:
    """What adapters must keep to."""

    max_loras: int
    """Most adapters in a step."""
    max_rank: int
    layers: Mapping[str, tuple[int, int]]
    """Inputs and outputs of the decoder's linear layers, by name."""
    encoders: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Inputs and outputs of linear layers that encoders run, and what connects them to the decoder."""
    parameters: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    """Shapes of other parameters of encoders, by module and name."""
    unused: tuple[str, ...] = ()
    """Linear layers in encoders that never run: what an adapter has for them is without effect."""
    output: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Inputs and outputs of the output layer, if tokens are sampled of what it returns."""
    table: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Number and width of the embeddings of tokens."""
    tied: bool = False
    """Whether the output layer has the embeddings of tokens for its weight."""
    embeds_items: bool = False
    """Whether encoders read embeddings of tokens."""

    def note(self, findings: MutableMapping[str, Any]) -> None:
        """Write it where the process that prepares prompts finds it."""
        findings[_KEY] = asdict(self)

    @classmethod
    def noted(cls, findings: Mapping[str, Any]) -> Self | None:
        """Return what was written; None for a model that takes no adapters."""
        return None if (found := findings.get(_KEY)) is None else cls(**found)

    def module(self, name: str) -> str | None:
        """Return the module that an adapter calls so; None if there is none that it may change.

        An adapter may come from a class that has the decoder one level higher or deeper.
        """
        return name if name in self._names else self._by_short_name.get(_short(name))

    def linear(self, module: str) -> tuple[int, int] | None:
        """Return inputs and outputs of a linear layer; None for another module."""
        return self._linears.get(module)

    def is_of_items(self, module: str) -> bool:
        """Whether the embeddings of items depend on a module."""
        return module in self.encoders or module in self.parameters or (self.embeds_items and module in self.table)

    @cached_property
    def _linears(self) -> Mapping[str, tuple[int, int]]:
        return {**self.layers, **self.encoders, **self.output}

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*self._linears, *self.parameters, *self.unused, *self.table))

    @cached_property
    def _by_short_name(self) -> Mapping[str, str]:
        counts = Counter(map(_short, self._names))
        return {short: name for name in self._names if counts[short := _short(name)] == 1}

    def offered(self) -> Iterator[str]:
        """Yield the last parts of the names of linear layers in the decoder and in encoders, and whole ones of others.

        These are what `target_modules` of an adapter can be.
        """
        yield from sorted({last for name in (*self.layers, *self.encoders) if (last := _last(name))[0] != "_"})
        yield from (*self.output, *self.table)


def _last(name: str) -> str:
    """Return the last part of a name, with the one before if it is a number."""
    before, _, last = name.rpartition(".")
    return f"{before.rpartition('.')[2]}.{last}" if last.isdigit() else last


def tower_of(name: str) -> str:
    """Return the part of a model that a module is in, by its name: `vision_tower`, `multi_modal_projector`."""
    return _short(name).partition(".")[0]


def _short(name: str) -> str:
    parts = [part for part in name.split(".") if part != _INNER] or [name]
    while len(parts) > 1 and parts[0] in _OUTER:
        del parts[0]
    return ".".join(parts)

"""What a loaded model takes of adapters: which layers there are, how wide they are, how high a rank may be.

The process that has the model writes it down; the one that prepares prompts reads it. Knows no files and no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

_KEY = "corellm_lora"
_OUTER = ("model", "language_model")
"""Modules around a decoder that releases of transformers, and classes of one model, have in different order."""


@dataclass(frozen=True)
class Terms:
    """What adapters must keep to."""

    max_loras: int
    """Most adapters in a step."""
    max_rank: int
    layers: Mapping[str, tuple[int, int]]
    """Inputs and outputs of the decoder's linear layers, by name."""

    def note(self, findings: MutableMapping[str, Any]) -> None:
        """Write it where the process that prepares prompts finds it."""
        layers = {name: list(size) for name, size in self.layers.items()}
        findings[_KEY] = {"max_loras": self.max_loras, "max_rank": self.max_rank, "layers": layers}

    @classmethod
    def noted(cls, findings: Mapping[str, Any]) -> Self | None:
        """Return what was written; None for a model that takes no adapters."""
        if (found := findings.get(_KEY)) is None:
            return None
        return cls(
            found["max_loras"], found["max_rank"], {name: (size[0], size[1]) for name, size in found["layers"].items()}
        )

    def layer(self, module: str) -> str | None:
        """Return the layer that an adapter calls so; None if there is none.

        An adapter may come from a class that has the decoder one level higher or deeper.
        """
        return module if module in self.layers else self._by_short_name.get(_short(module))

    @cached_property
    def _by_short_name(self) -> Mapping[str, str]:
        return {_short(name): name for name in self.layers}


def _short(name: str) -> str:
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _OUTER:
        del parts[0]
    return ".".join(parts)

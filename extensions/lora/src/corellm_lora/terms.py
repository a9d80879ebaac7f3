"""What a loaded model takes of adapters: which modules there are, how wide they are, how high a rank may be.

The process that has the model writes it down; the one that prepares prompts reads it. Knows no files and no weights.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

_KEY = "corellm_lora"
_OUTER = ("model", "language_model")
"""Modules around a decoder that releases of transformers, and classes of one model, have in different order."""
_INNER = "vision_model"
"""A module inside of vision towers that some releases of transformers have, and others do not."""
_RENAMED = {"block_sparse_moe": "mlp"}
"""Modules by the names that earlier releases have for them."""
_EXPERT = re.compile(r"(?P<experts>.+)\.(?P<number>\d{1,6})\.(?P<name>\w+)")
_OF_ONE = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": None, "w2": None}
"""Linear layers of an expert, as earlier releases have them: which half of joined outputs they are."""


class ExpertWeights(NamedTuple):
    """Weights of all experts of a layer, or of one."""

    module: str
    parameter: str
    number: int | None
    """Index of the expert; None for all experts."""
    num_experts: int
    """Number of experts whose weights these are."""
    in_features: int
    outputs: tuple[int, int]
    """Range of outputs of the parameter: the first one, and the one behind the last."""


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
    experts: Mapping[str, Mapping[str, tuple[int, int, int]]] = field(default_factory=dict)
    """Number, inputs and outputs of experts, by module and parameter, in the module's order."""
    interleaved: tuple[str, ...] = ()
    """Modules of experts whose joined outputs are not one half behind the other."""
    routers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Inputs and outputs of modules that choose experts."""
    transposed: tuple[str, ...] = ()
    """Linear layers whose weights have a row for each input in the checkpoint, and in what replaces them."""

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
        return self._whole(name) or self._of_one_expert(name)

    def parameters_of_experts(self, module: str) -> Sequence[str]:
        """Return the names of the parameters of a module of experts, in its order; none for another module."""
        found = self._whole(f"{module}.down_proj") or ""
        return (*self.experts.get(found.removesuffix(".down_proj"), {}),)

    def expert_weights(self, name: str) -> ExpertWeights | None:
        """Return which weights of experts a name of `module` is for; None if it is for no experts."""
        module, _, last = name.rpartition(".")
        if (sizes := self.experts.get(module)) is not None:
            number, inputs, outputs = sizes[last]
            return ExpertWeights(module, last, None, number, inputs, (0, outputs))
        module, _, expert = module.rpartition(".")
        if (sizes := self.experts.get(module)) is None:
            return None
        parameter, half = self._parameter_of(last, sizes)
        _, inputs, outputs = sizes[parameter]
        place = (0, outputs) if half is None else (half * outputs // 2, (half + 1) * outputs // 2)
        return ExpertWeights(module, parameter, int(expert), 1, inputs, place)

    def linear(self, module: str) -> tuple[int, int] | None:
        """Return inputs and outputs of a linear layer; None for another module."""
        return self._linears.get(module)

    def is_of_items(self, module: str) -> bool:
        """Whether the embeddings of items depend on a module."""
        return module in self.encoders or module in self.parameters or (self.embeds_items and module in self.table)

    def _whole(self, name: str) -> str | None:
        return name if name in self._names else self._by_short_name.get(_short(name))

    def _of_one_expert(self, name: str) -> str | None:
        """Return an expert's linear layer of earlier releases, by the module that has it now."""
        found = _EXPERT.fullmatch(name)
        known = None if found is None else self._whole(f"{found['experts']}.down_proj")
        if found is None or known is None or found["name"] not in _OF_ONE:
            return None
        module = known.removesuffix(".down_proj")
        sizes = self.experts.get(module, {})
        parameter, half = self._parameter_of(found["name"], sizes)
        if parameter not in sizes or int(found["number"]) >= sizes[parameter][0]:
            return None
        if half is not None and module in self.interleaved:
            return None
        return f"{module}.{int(found['number'])}.{found['name']}"

    @staticmethod
    def _parameter_of(name: str, sizes: Mapping[str, tuple[int, int, int]]) -> tuple[str, int | None]:
        """Return the parameter that has a linear layer of an expert, and which half of its outputs; None for all."""
        half = _OF_ONE[name]
        if half is None:
            return "down_proj", None
        return ("gate_up_proj", half) if "gate_up_proj" in sizes else (name, None)

    @cached_property
    def _linears(self) -> Mapping[str, tuple[int, int]]:
        return {**self.layers, **self.encoders, **self.output}

    @cached_property
    def _names(self) -> frozenset[str]:
        experts = (f"{module}.{parameter}" for module, sizes in self.experts.items() for parameter in sizes)
        return frozenset((*self._linears, *self.parameters, *self.unused, *self.table, *experts, *self.routers))

    @cached_property
    def _by_short_name(self) -> Mapping[str, str]:
        counts = Counter(map(_short, self._names))
        return {short: name for name in self._names if counts[short := _short(name)] == 1}

    def offered(self) -> Iterator[str]:
        """Yield the last parts of the names of linear layers in the decoder and in encoders, and whole ones of others.

        These are what `target_modules` of an adapter can be.
        """
        yield from sorted({last for name in (*self.layers, *self.encoders) if (last := _last(name))[0] != "_"})
        yield from sorted({f"{_last(module)}.{name}" for module, sizes in self.experts.items() for name in sizes})
        yield from (*self.output, *self.table)


def _last(name: str) -> str:
    """Return the last part of a name, with the one before if it is a number."""
    before, _, last = name.rpartition(".")
    return f"{before.rpartition('.')[2]}.{last}" if last.isdigit() else last


def tower_of(name: str) -> str:
    """Return the part of a model that a module is in, by its name: `vision_tower`, `multi_modal_projector`."""
    return _short(name).partition(".")[0]


def _short(name: str) -> str:
    parts = [_RENAMED.get(part, part) for part in name.split(".") if part != _INNER] or [name]
    while len(parts) > 1 and parts[0] in _OUTER:
        del parts[0]
    return ".".join(parts)

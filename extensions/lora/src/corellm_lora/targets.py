"""The modules of a loaded model that adapters may change: its linear layers, embeddings, and what its encoders are of.

What belongs to encoders is seen when they run on dummy items at load. Knows modules and names; knows no adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from corellm.modelling.linear_additions import LinearAdditions
from corellm.plain_linears import AsLinear
from corellm_lora.mixtures import expert_sizes, router_size
from corellm_lora.terms import Terms, tower_of


class Targets:
    """The modules.

    Args:
        linears: of the model.
        tied: whether its output layer has the embeddings of tokens for its weight.
        max_loras, max_rank: see `Terms`.
    """

    def __init__(self, linears: LinearAdditions, tied: bool, max_loras: int, max_rank: int) -> None:
        self._linears, self._tied, self._most = linears, tied, (max_loras, max_rank)
        inside = set(linears.decoder.modules())
        self._outside = {name: module for name, module in linears.model.named_modules() if module not in inside}
        self.table = self._named(_embeddings(linears.model))
        self.output = self._named(_output_layer(linears.model)) if linears.samples else ""
        inner = [(name, module) for name, module in linears.model.named_modules() if module in inside]
        self.experts = {name: sizes for name, module in inner if (sizes := expert_sizes(module))}
        self.routers = {name: size for name, module in inner if (size := self._router_size(name, module))}
        self.transposed: tuple[str, ...] = getattr(linears.model, "transposed_linears", ())
        self._in_part: set[str] = set()
        """Names of experts and routers that ran on other rows than those of a step's tokens."""
        self._ran: set[str] = set()
        """Names of modules that ran in encoders, and of experts and routers that ran in the decoder."""
        watched = {**self._outside, **({self.table: linears.model.get_submodule(self.table)} if self.table else {})}
        self._watch = [
            module.register_forward_pre_hook(partial(self._note, name)).remove for name, module in watched.items()
        ]
        self.is_encoding = False
        self.num_tokens: int | None = None
        """Tokens of the step that runs the decoder; None otherwise, and where it is captured."""

    def close(self) -> None:
        """Watch no more."""
        for remove in self._watch:
            remove()
        self._watch.clear()

    @property
    def is_watching(self) -> bool:
        """Whether it is still being seen what encoders run."""
        return bool(self._watch)

    def linear_ran(self, name: str) -> None:
        """Note that a linear layer ran, which may have been joined with others."""
        if self.is_encoding:
            self._ran.add(self._called(name))

    def mixture_ran(self, name: str, num_rows: int) -> None:
        """Note that experts, or what chooses them, ran on so many rows."""
        if self.num_tokens is not None:
            self._ran.add(name)
            if num_rows != self.num_tokens:
                self._in_part.add(name)

    def linear(self, name: str) -> str:
        """Return the name of the linear layer that a module is, or has in itself."""
        module = self.module(name)
        return f"{name}.{module.as_linear}" if isinstance(module, AsLinear) else name

    def _called(self, linear: str) -> str:
        """Return what adapters call a linear layer: by the layer around it, if it is one on other rows."""
        around, _, last = linear.rpartition(".")
        module = self._outside.get(around)
        return around if isinstance(module, AsLinear) and module.as_linear == last else linear

    def terms(self) -> Terms:
        """Return what adapters must keep to, by what has been seen."""
        outside = {self._called(name): size for name, size in self._linears.outside.items() if name != self.output}
        towers = set(map(tower_of, self._ran - {self.table, *self.experts, *self.routers}))
        parameters = {
            name: {
                own: tuple(parameter.shape) for own, parameter in module._parameters.items() if parameter is not None
            }
            for name, module in self._others(outside)
            if tower_of(name) in towers
        }
        whole = self._ran - self._in_part
        experts = self.experts if whole.issuperset(self.experts) else {}  # else tokens of items may have experts apart
        table: Any = self.module(self.table) if self.table else None
        output = self._linears.outside.get(self.output)
        return Terms(
            *self._most,
            dict(self._linears.sizes),
            {name: size for name, size in outside.items() if name in self._ran},
            {name: shapes for name, shapes in parameters.items() if shapes},
            tuple(name for name in outside if tower_of(name) in towers and self._never_runs(name)),
            {} if output is None else {self.output: output},
            {} if table is None else {self.table: tuple(table.weight.shape)},
            self._tied,
            self.table in self._ran,
            experts,
            tuple(name for name in experts if not getattr(self.module(name), "is_concatenated", True)),
            {name: size for name, size in self.routers.items() if name in whole},
            self.transposed,
        )

    def module(self, name: str) -> nn.Module:
        """Return a module."""
        return self._linears.model.get_submodule(name)

    def _router_size(self, name: str, module: nn.Module) -> tuple[int, int] | None:
        """Return the size of a module that chooses experts, which is beside them."""
        beside = f"{name.rpartition('.')[0]}."
        numbers = {
            number
            for experts, sizes in self.experts.items()
            if experts.startswith(beside) and "." not in experts.removeprefix(beside)
            for number, _, _ in sizes.values()
        }
        return router_size(module, numbers.pop()) if numbers and name not in self.experts else None

    def _note(self, name: str, module: nn.Module, args: Any) -> None:
        if self.is_encoding:
            self._ran.add(name)

    def _named(self, wanted: nn.Module | None) -> str:
        return next((name for name, module in self._linears.model.named_modules() if module is wanted), "")

    def _others(self, linears: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield modules outside of the decoder that are no linear layers."""
        layers = tuple(f"{name}." for name in (*linears, self.output))
        for name, module in self._outside.items():
            if not f"{name}.".startswith(layers) and not hasattr(module, "in_features"):
                yield name, module

    def _never_runs(self, name: str) -> bool:
        """Whether neither a layer nor the module around it ran, which may have read its weight."""
        parent = name.rpartition(".")[0]
        while isinstance(self._outside.get(parent), (nn.ModuleList, nn.ModuleDict)):
            parent = parent.rpartition(".")[0]
        return name not in self._ran and parent not in self._ran


def _embeddings(model: nn.Module) -> nn.Module | None:
    """Return the embeddings of tokens, if they are a plain table."""
    found = _called(getattr(model, "get_input_embeddings", None))
    return found if isinstance(found, nn.Embedding) else None


def _output_layer(model: nn.Module) -> nn.Module | None:
    return _called(getattr(model, "get_output_embeddings", None))


def _called(get: Callable[[], nn.Module | None] | None) -> nn.Module | None:
    try:
        return None if get is None else get()
    except NotImplementedError:  # transformers' way to say that there is none
        return None

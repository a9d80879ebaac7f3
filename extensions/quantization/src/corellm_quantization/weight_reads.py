"""Linear layers that never run: modules of some models multiply with the layer's weight themselves, as Mamba's do.

Such a weight must stay a tensor of floats. Knows the source of modules; knows no model.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from types import FunctionType
from typing import Any

from torch import nn


def is_run(parent: nn.Module, child: str) -> bool:
    """Whether a module runs its linear layer wherever it needs it.

    Not if its code multiplies with the layer's weight (`@`), nor if it names the weight and nowhere calls the layer.
    Where it does both, the weight goes to a kernel for training.
    """
    kind: Any = type(parent)
    multiplied, read, called = _uses(kind)
    return child not in multiplied and (child in called or child not in read)


@cache
def _uses(cls: type[Any]) -> tuple[frozenset[str], ...]:
    """Return the attributes of a class with whose weight it multiplies, whose weight it has, and which it calls."""
    nodes = [node for method in _methods(cls) for node in ast.walk(_parsed(method))]
    factors = [side for node in nodes if isinstance(node, ast.BinOp) for side in (node.left, node.right)]
    called = {_of_self(node.func) for node in nodes if isinstance(node, ast.Call)}
    return frozenset(map(_of_weight, factors)), frozenset(map(_of_weight, nodes)), frozenset(called)


def _methods(cls: type[Any]) -> Iterator[FunctionType]:
    """Yield what a class adds to torch's, but for what makes and initializes it."""
    for owner in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        for name, value in vars(owner).items():
            if isinstance(value, FunctionType) and "init" not in name:
                yield value


def _parsed(method: FunctionType) -> ast.AST:
    """Return a method's source; an empty one where there is none, as of methods that were made of a text."""
    try:
        source = inspect.getsource(method)
        return ast.parse(f"class _:\n{source}" if source[0].isspace() else source)
    except (OSError, SyntaxError):  # SyntaxError: a line that has more than the method
        return ast.Module([], [])


def _of_weight(node: ast.AST) -> str:
    """Return `x` of `self.x.weight`; nothing for another expression."""
    return _of_self(node.value) if isinstance(node, ast.Attribute) and node.attr == "weight" else ""


def _of_self(node: ast.AST) -> str:
    """Return `x` of `self.x`; nothing for another expression."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""

"""Mutants made from an adapter's own source, one change at a time: constants, operators, arguments, statements, hooks.

`changes` yields them. Knows Python's syntax tree; knows no rule and no family.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Add,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Pow: ast.Mult,
}  # fmt: skip

_Edit = Callable[[Any], ast.stmt | None]
"""Changes a node in place; returns the statement that it leaves out, if that is what it does."""


@dataclass(frozen=True)
class Change:
    """One change of a plugin's file."""

    file: str
    """Path within the plugin's package."""
    line: int
    where: str
    """Name of the function or class around it."""
    old: str
    new: str
    source: str
    """The changed file."""
    around: str
    """The function around it before the change, as code; empty outside functions."""
    number: int = 0
    """How many changes before it are the same in the same function, from other places."""

    @property
    def name(self) -> str:
        """What stays the same while its function does: a digest."""
        parts = (self.file, self.where, self.old, self.new, self.around, str(self.number))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, {self.where}: {self.old}  ->  {self.new}"

    def apply(self, package: Path) -> None:
        """Write the changed file into a copy of the plugin."""
        (package / self.file).write_text(self.source, encoding="utf-8")


def changes(package: Path, file: str) -> Iterator[Change]:
    """Yield every change of a file, in the order of its lines; none of annotations, docstrings, imports and errors."""
    tree = ast.parse((package / file).read_text(encoding="utf-8"))
    seen = {ast.unparse(tree)}
    places = {id(node): place for place, node in enumerate(ast.walk(tree))}
    around, made = _functions(tree), Counter[tuple[str, str, str]]()
    functions = {
        node.name: ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and around[id(node)] == node.name
    }
    for node in sorted(_code(tree), key=lambda node: (node.lineno, node.col_offset)):
        for edit in _edits(node):
            changed = copy.deepcopy(tree)
            target = next(other for place, other in enumerate(ast.walk(changed)) if place == places[id(node)])
            left_out = edit(target)
            source = ast.unparse(ast.fix_missing_locations(changed))
            if source in seen:
                continue
            seen.add(source)
            own, what, line, then = around[id(node)], _short(node), node.lineno, _short(target)
            if left_out is not None:
                what, line, then = _short(left_out), left_out.lineno, "left out"
                if isinstance(left_out, ast.FunctionDef) and not isinstance(node, ast.FunctionDef):
                    own = left_out.name
            number = made[own, what, then]
            made[own, what, then] += 1
            yield Change(file, line, own, what, then, source, functions.get(own, ""), number)


def _short(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"def {node.name}"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:89]}…"


def _functions(tree: ast.AST, name: str = "", *, inside: bool = False) -> dict[int, str]:
    """Return the name of the outermost function around each node, of the class outside functions."""
    found: dict[int, str] = {}
    for child in ast.iter_child_nodes(tree):
        own = name
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and not inside:
            own = child.name
        found[id(child)] = own
        found |= _functions(child, own, inside=inside or isinstance(child, ast.FunctionDef))
    return found


def _code(tree: ast.AST) -> Iterator[Any]:
    """Yield the expressions and statements that run."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.Import, ast.ImportFrom)) or _is_docstring(child) or _is_for_checkers(child):
            continue
        if isinstance(child, ast.arg) or (isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)):
            continue
        if isinstance(child, ast.AnnAssign):
            yield from _within(child.value)
        elif isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield child
            for part in [*child.body, *(child.args.defaults if isinstance(child, ast.FunctionDef) else ())]:
                if not _is_docstring(part):
                    yield from _within(part)
        else:
            yield from _within(child)


def _within(node: ast.AST | None) -> Iterator[Any]:
    if node is None or isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise)) or _is_for_checkers(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AnnAssign)):
        yield from _code(ast.Module([node], []))
        return
    if hasattr(node, "lineno"):
        yield node
    yield from _code(node)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_checkers(node: ast.AST) -> bool:
    """Whether a statement is for type checkers and importers only: `if TYPE_CHECKING`, `__all__`, `TypeVar(...)`."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if not isinstance(node, ast.Assign):
        return False
    return ast.unparse(node.targets[0]) == "__all__" or ast.unparse(node.value).startswith("TypeVar(")


# --- edits ----------------------------------------------------------------------------------------------------------


def _edits(node: Any) -> Iterator[_Edit]:
    if isinstance(node, ast.Constant):
        yield from _edits_of_constant(node.value)
    elif isinstance(node, ast.Compare):
        yield lambda x: x.ops.__setitem__(0, _COMPARED[type(x.ops[0])]())
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        yield lambda x: setattr(x, "op", _COMPUTED[type(x.op)]())
    elif isinstance(node, ast.BoolOp):
        yield lambda x: setattr(x, "op", ast.Or() if isinstance(x.op, ast.And) else ast.And())
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)) and not isinstance(node.test, ast.Compare):
        yield lambda x: setattr(x, "test", ast.UnaryOp(ast.Not(), x.test))
    elif isinstance(node, ast.Return) and ast.unparse(node.value or ast.Constant(None)) != "None":
        yield lambda x: setattr(x, "value", None)
    elif isinstance(node, ast.Call):
        for index in range(len(node.keywords)):
            yield partial(_without, "keywords", index)
        for index in range(len(node.args)):
            if len(node.args) > 1:
                yield partial(_without, "args", index)
    elif isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load):
        for index in range(len(node.elts)):
            yield partial(_without, "elts", index)
    elif isinstance(node, ast.Dict):
        for index in range(len(node.keys)):
            yield partial(_without_entry, index)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for index, generator in enumerate(node.generators):
            if generator.ifs:
                yield partial(_without_filters, index)
    yield from _edits_of_bodies(node)


def _edits_of_constant(value: object) -> Iterator[_Edit]:
    if isinstance(value, bool):
        yield lambda x: setattr(x, "value", not x.value)
    elif isinstance(value, (int, float)):
        yield lambda x: setattr(x, "value", x.value + 1)
        yield lambda x: setattr(x, "value", x.value - 1)
    elif isinstance(value, str):
        yield lambda x: setattr(x, "value", f"{x.value}X")


def _edits_of_bodies(node: Any) -> Iterator[_Edit]:
    """Yield edits that leave out a statement: of a class, an attribute or a method; of a function, what it does."""
    for field in ("body", "orelse"):
        body = getattr(node, field, None)
        for index, statement in enumerate(body if isinstance(body, list) else ()):
            kinds = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.FunctionDef, ast.For, ast.If, ast.Delete)
            if isinstance(statement, kinds) and not _is_docstring(statement):
                yield partial(_pass_instead, field, index)


def _without(field: str, index: int, node: Any) -> None:
    del getattr(node, field)[index]


def _without_entry(index: int, node: Any) -> None:
    del node.keys[index], node.values[index]


def _without_filters(index: int, node: Any) -> None:
    node.generators[index].ifs = []


def _pass_instead(field: str, index: int, node: Any) -> ast.stmt:
    body = getattr(node, field)
    left_out: ast.stmt = body[index]
    body[index] = ast.Pass()
    return left_out

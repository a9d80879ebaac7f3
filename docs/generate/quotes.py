"""Quotes definitions from source files by name, so that pages show the code that runs."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def quote(file: str, *names: str) -> str:
    """Return a code block with definitions of a file of the repository.

    Args:
        file: path from the repository's root.
        names: of functions, classes, methods (`Llava.get_prompt_updates`) or constants, in the order to show them.

    Raises:
        KeyError: there is no such definition.
    """
    source = (ROOT / file).read_text(encoding="utf-8")
    shown = "\n\n".join(definition(source, name) for name in names)
    return f'```python title="{file}"\n{shown}\n```'


def definition(source: str, name: str) -> str:
    """Return a definition's source, with decorators and docstring, without the indentation of its class."""
    body = ast.parse(source).body
    for part in name.split("."):
        found = next((i for i, node in enumerate(body) if part in _names(node)), None)
        if found is None:
            raise KeyError(f"no definition of {name}")
        node, after = body[found], body[found + 1 : found + 2]
        body = getattr(node, "body", [])
    last = after[0] if isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_docstring(after) else node
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return textwrap.dedent("\n".join(source.splitlines()[first - 1 : last.end_lineno]))


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_docstring(nodes: list[ast.stmt]) -> bool:
    """Return whether the next statement is a string, the docstring of a constant."""
    return bool(nodes) and isinstance(nodes[0], ast.Expr) and isinstance(nodes[0].value, ast.Constant)

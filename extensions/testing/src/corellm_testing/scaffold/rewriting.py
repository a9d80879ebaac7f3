"""Renames identifiers in source text; prose stays.

The package and the distribution are renamed wherever they are written. Names of classes are renamed where they are
names, architectures where they are whole strings; `transformers.LlavaForConditionalGeneration` and docstrings stay.
Knows Python's tokens, not plugins.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

_ARCHITECTURE_SETTER = "set_architecture"
_HOME = "corellm.tiny_checkpoints"
_LINE_LENGTH = 120


@dataclass(frozen=True)
class Renaming:
    """Old and new names."""

    package: tuple[str, str]
    """Old and new."""
    distribution: tuple[str, str]
    """Old and new; an old one without a dash could be any word and is not renamed."""
    identifiers: Mapping[str, str]
    architectures: Mapping[str, str]

    def apply(self, source: str) -> str:
        """Return the source with the new names."""
        for old, new in (self.package, *([self.distribution] if "-" in self.distribution[0] else [])):
            source = re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w-])", new, source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        starts = [0, *accumulate(len(line) for line in _lines(source))]
        renamed, end = [], 0
        for i, token in enumerate(tokens):
            new = self._renamed(token, [other.string for other in tokens[max(0, i - 4) : i]])
            if new != token.string:
                (row, column), (last_row, last_column) = token.start, token.end
                renamed += [source[end : starts[row - 1] + column], new]
                end = starts[last_row - 1] + last_column
        return "".join([*renamed, source[end:]])

    def _renamed(self, token: tokenize.TokenInfo, before: list[str]) -> str:
        """Return a token's new text; `before` holds the four tokens before it."""
        text = token.string
        if token.type == tokenize.NAME:
            return text if before[-2:] == ["transformers", "."] else self.identifiers.get(text, text)
        if token.type != tokenize.STRING or before == ["getattr", "(", "transformers", ","]:
            return text
        if "f" in re.split("[\"']", text)[0].lower():  # before Python 3.12 its names are no tokens of their own
            return re.sub(r"\{[^{}]*\}", lambda match: self._words(match[0]), text)
        plain = re.fullmatch(r"""(["'])(\w+)\1""", text)
        names = {**self.identifiers, **self.architectures}
        return f"{plain[1]}{names[plain[2]]}{plain[1]}" if plain and plain[2] in names else text

    def _words(self, code: str) -> str:
        return re.sub(r"(?<!transformers\.)\b\w+\b", lambda match: self.identifiers.get(match[0], match[0]), code)


def _lines(source: str) -> list[str]:
    """Return lines as Python counts them; `str.splitlines` also splits at form feeds and Unicode's separators."""
    return list(io.StringIO(source))


def names_in(source: str) -> set[str]:
    """Return all names in the code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def defined_in(source: str) -> list[str]:
    """Return the names of the classes and functions that a module defines, in their order."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [node.name for node in ast.parse(source).body if isinstance(node, kinds)]


def docstring(source: str) -> str:
    """Return a module's docstring."""
    return ast.get_docstring(ast.parse(source)) or ""


def begin_docstring(source: str, header: str) -> str:
    """Return the source with a paragraph before the module's docstring, or with that as docstring."""
    tree = ast.parse(source)
    existing = ast.get_docstring(tree, clean=False)
    if existing is None:
        return f'"""{header}"""\n\n{source}'
    lines = _lines(source)
    end = tree.body[0].end_lineno
    assert end is not None, "parsed from text"
    quoted = "".join(lines[tree.body[0].lineno - 1 : end])
    body = re.fullmatch(r'(?s)(?P<prefix>\w*)"""(?P<body>.*)"""\s*', quoted)
    prefix, text = (body["prefix"], body["body"]) if body else ("", existing)
    lines[tree.body[0].lineno - 1 : end] = [f'{prefix}"""{header}\n\n{text.rstrip()}\n"""\n']
    return "".join(lines)


def reword_first_line(source: str, old: str, new: str) -> str:
    """Return the source with `old` replaced in the first line of the module's docstring."""
    first = docstring(source).partition("\n")[0]
    return source.replace(first, first.replace(old, new), 1) if old in first else source


def name_architecture(source: str, architecture: str) -> str:
    """Return the source in which `make_tiny_checkpoint` ends by writing the architecture into the checkpoint.

    Where the function has a parameter `architecture`, that is written instead.
    """
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    maker = next(function for function in functions if function.name == "make_tiny_checkpoint")
    calls = [node for node in ast.walk(maker) if isinstance(node, ast.Call)]
    if any(isinstance(call.func, ast.Name) and call.func.id == _ARCHITECTURE_SETTER for call in calls):
        return source  # a copy of a copy
    arguments = [argument.arg for argument in (*maker.args.posonlyargs, *maker.args.args, *maker.args.kwonlyargs)]
    chosen = "architecture" if "architecture" in arguments else f'"{architecture}"'
    returns = [node for node in ast.walk(maker) if isinstance(node, ast.Return)]
    last = max(returns, key=lambda node: node.lineno, default=maker.body[-1])
    after = last.lineno - 1 if returns else last.end_lineno
    lines = _lines(source)
    lines[after:after] = [f"{' ' * last.col_offset}{_ARCHITECTURE_SETTER}({arguments[0]}, {chosen})\n"]
    return _with_import("".join(lines))


def _with_import(source: str) -> str:
    """Return the source with the setter imported, in the import line of its module if there is one."""
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    home = [node for node in imports if isinstance(node, ast.ImportFrom) and node.module == _HOME]
    names = sorted({_ARCHITECTURE_SETTER, *(ast.unparse(alias) for node in home[:1] for alias in node.names)})
    line = f"from {_HOME} import {', '.join(names)}\n"
    if len(line) > _LINE_LENGTH:
        line = f"from {_HOME} import (\n" + "".join(f"    {name},\n" for name in names) + ")\n"
    lines = _lines(source)
    if home:
        lines[home[0].lineno - 1 : home[0].end_lineno] = [line]
    else:
        after = imports[-1].end_lineno if imports else tree.body[0].end_lineno
        lines[after:after] = [line] if imports else ["\n", line]
    return "".join(lines)

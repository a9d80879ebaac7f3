"""Follows a page like a reader: runs its commands and its Python, writes its files, and compares what is printed.

Knows how each kind of block is run; `test_pages.py` lists the kinds.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jinja2
import yaml

from corellm import LLM
from corellm.plugin.contract import CONTRACT
from tests.docs.blocks import Block
from tests.docs.shell import ROOT, Shell

PARSERS = {
    "toml": tomllib.loads,
    "json": json.loads,
    "yaml": yaml.safe_load,
    "jinja": jinja2.Environment().from_string,
}
COMMANDS = ("sh", "indented")
PAGE = "__page__"
OWN_ENTRIES = {".git", ".github", "site"}
_CLIENTS = ("Anthropic", "OpenAI")
"""Classes of clients whose sockets would be found open at some later time, in another test."""


class Reader:
    """Follows one page in a folder that looks like a checkout and may be written to.

    Args:
        here: an empty folder.
        whole: run slow rules of contracts, too.
    """

    def __init__(self, here: Path, *, whole: bool = False) -> None:
        self.here = here
        for entry in ROOT.iterdir():
            if not entry.name.startswith(".") and entry.name not in OWN_ENTRIES:
                (here / entry.name).symlink_to(entry)
        self.namespace: dict[str, Any] = {"__name__": PAGE}
        self.shell = Shell(here, whole=whole)

    def follow(self, blocks: Sequence[Block]) -> None:
        """Run all blocks of a page in their order.

        Raises:
            AssertionError: a block does not do what the page says, or is of no known kind.
            ContractError: an adapter that the page shows breaks the contract.
        """
        shown: str | None = None  # output of the block before, if a text may follow
        for block, after in zip_longest(blocks, blocks[1:]):
            expects = after is not None and after.language == "text" and not after.not_run
            if block.not_run:
                assert block.language in ("text", "indented"), f"{block.where}: only text may be left untried"
                shown = None
            elif block.language == "text":
                assert shown is not None, f"{block.where}: a text that nothing prints; say why: <!-- not run: why -->"
                self._compare(block, block.text, shown)
                shown = None
            else:
                shown = self._try(block, expects=expects)
        for value in self.namespace.values():
            if isinstance(value, type) and value.__module__ == PAGE and hasattr(value, "contract"):
                CONTRACT.check_adapter(value, value.__name__)

    def _try(self, block: Block, *, expects: bool) -> str | None:
        """Run one block; return what it printed if a text may show it, else None."""
        file = self.shell.cwd / block.attributes["title"] if "title" in block.attributes else None
        if block.language == "diff":
            assert file is not None, f"{block.where}: a diff has a title, the file it changes"
            _change(file, block)
            return None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        if block.language in PARSERS:
            PARSERS[block.language](block.text)
            return None
        if block.language in ("python", "setup"):
            if file is not None:
                compile(block.text, block.where, "exec")
                return None
            return self._run_python(block, expects=expects)
        if block.language in COMMANDS:
            printed = "".join(self.shell.run(command, block.where) for command in _commands(block.text))
            return printed if expects else None
        if block.language == "console":
            for command, expected in _session(block):
                printed = self.shell.run(command, block.where, expected=expected)
                if expected.strip():
                    self._compare(block, expected, printed)
            return None
        raise AssertionError(f"{block.where}: no kind of block is {block.language!r}; see tests/docs/test_pages.py")

    def _run_python(self, block: Block, *, expects: bool) -> str:
        """Run Python in the page's namespace; if the page shows what is printed, an error counts as printed."""
        printed = io.StringIO()
        with contextlib.chdir(self.here), contextlib.redirect_stdout(printed):
            try:
                exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), self.namespace)
            except Exception as error:
                if not expects:
                    raise
                printed.write("".join(traceback.format_exception_only(error)))
        return printed.getvalue()

    def _compare(self, block: Block, expected: str, printed: str) -> None:
        wanted, got = _plain(expected), _plain(printed.replace(str(self.here), "."))
        pattern = "".join(map(_line_pattern, wanted.splitlines()))
        assert re.fullmatch(pattern, got + "\n"), f"{block.where} says\n\n{wanted}\n\nbut it is\n\n{got}\n"

    def leave(self) -> None:
        """Close the models and clients that the page left open, and remove what it installed."""
        for value in self.namespace.values():
            if isinstance(value, LLM) or type(value).__name__ in _CLIENTS:
                value.close()
        self.shell.leave()


@contextlib.contextmanager
def reading(here: Path, *, whole: bool = False) -> Iterator[Reader]:
    """Yield a reader, and restore the process afterwards."""
    paths, writes = list(sys.path), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # bytecode of a file that changes twice in a second would be stale
    reader = Reader(here, whole=whole)
    try:
        yield reader
    finally:
        reader.leave()
        sys.path[:], sys.dont_write_bytecode = paths, writes


def _commands(text: str) -> list[str]:
    """Return the commands of a block, without comments, with lines joined that end with a backslash."""
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _session(block: Block) -> Iterator[tuple[str, str]]:
    """Yield `(command, what it prints according to the page)` of a console block."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not first.strip(), f"{block.where}: a console block begins with a command, `$ ...`"
    for part in parts:
        command, _, expected = part.replace("\\\n", " ").partition("\n")
        yield command, expected


def _change(file: Path, block: Block) -> None:
    """Apply a diff to a file, which must have the old lines exactly once."""
    lines = block.text.splitlines()
    before = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
    after = "".join(line[1:] + "\n" for line in lines if not line.startswith("-"))
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{block.where}: {file.name} has these lines {text.count(before)} times:\n{before}"
    file.write_text(text.replace(before, after), encoding="utf-8")


def _line_pattern(line: str) -> str:
    """Return a regular expression for a line: `...` in it is any text; alone any lines, or none."""
    return r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(re.escape("..."), r"[\s\S]*?") + r"\n"


def _plain(text: str) -> str:
    """Return the text without spaces at the ends of lines and without empty lines around it."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())

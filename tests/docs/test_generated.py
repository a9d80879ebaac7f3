"""Generated parts of pages are complete and agree with the code; a part that cannot be generated fails the build."""

from __future__ import annotations

import argparse
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import corellm
import corellm_testing
from corellm import config, errors
from corellm.cli import build_parser
from corellm.config import CacheConfig, ModelConfig, MultiModalConfig, SchedulerConfig
from corellm.errors import CorellmError
from corellm.fetch_settings import FetchSettings
from corellm_llava import Llava
from corellm_testing import AdapterContract
from corellm_testing.quick import is_slow
from corellm_testing.rules import rules_of
from docs.generate import directives, inclusion, quotes, tables
from tests.docs.test_pages import ROOT

DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_command_has_its_chapter() -> None:
    """Each has the help text that the command prints."""
    (subparsers,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    chapters = re.findall(r"^## corellm ([\w-]+)$", page("run/command-line.md"), re.MULTILINE)
    helps = re.findall(r"^<!-- generate: help ([\w-]+) -->$", page("run/command-line.md"), re.MULTILINE)
    assert sorted(chapters) == sorted(helps) == sorted(subparsers.choices)
    for name, parser in subparsers.choices.items():
        shown = tables.command_help(name)
        told = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        assert all(option in shown for action in told for option in action.option_strings)
        assert shown.splitlines()[1].startswith(f"usage: corellm {name}")


def test_every_engine_argument_is_in_a_table() -> None:
    """Each has its default and a description."""
    classes = (ModelConfig, CacheConfig, SchedulerConfig, MultiModalConfig, FetchSettings)
    assert re.findall(r"<!-- generate: arguments (\w+) -->", page("operate/index.md")) == [c.__name__ for c in classes]
    for config_class in classes:
        rows = tables.arguments(config_class.__name__).splitlines()[2:]
        assert len(rows) == len(fields(config_class))
        for row, field in zip(rows, fields(config_class), strict=True):
            cells = [cell.strip() for cell in row.strip("|").split(" | ")]
            assert f"`{field.name}`" in cells[0]
            assert len(cells) == 3 and len(cells[2]) > 10, row  # noqa: PT018
    assert "`89_478_485`" in tables.arguments("MultiModalConfig")


def test_every_rule_is_listed_once() -> None:
    """All tests of the contract are listed, with docstrings, under the headings of their parts; slow ones marked."""
    listed = tables.rules()
    names = re.findall(r"^`(test_\w+)`$", listed, re.MULTILINE)
    assert sorted(names) == [name for name, _ in inspect.getmembers(AdapterContract) if name.startswith("test_")]
    assert len(names) > 40
    assert listed.startswith("## ")
    statement = inspect.getdoc(AdapterContract.test_import_is_light).partition("\n\n")[0]
    assert " ".join(statement.split()) in listed
    marked = re.findall(r"^`(test_\w+)`\n:.*\*\(slow\)\*$", listed, re.MULTILINE)
    assert sorted(marked) == sorted(name for name, rule in rules_of(AdapterContract).items() if is_slow(rule))


def test_the_tree_of_errors_is_the_tree() -> None:
    """The docstring's tree has all classes, each below its base."""
    drawn: list[tuple[str, str]] = []
    above: list[str] = []
    for line in tables.error_tree().splitlines()[1:-1]:
        found = re.search(r"[A-Z]\w+", line)
        assert found is not None
        above = [*above[: found.start() // 4], found[0]]
        drawn.append((above[-2] if len(above) > 1 else "", found[0]))
    classes = {c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, CorellmError)}
    assert sorted(drawn) == sorted(("" if c is CorellmError else c.__bases__[0].__name__, c.__name__) for c in classes)


def test_public_names_are_in_the_reference() -> None:
    """All of `corellm` and `corellm_testing` are; of other modules the reference has everything."""
    elsewhere = {"__version__", "CorellmError", "EngineConfig"}  # errors and config have their own pages
    shown = set(re.findall(r"^::: corellm\.(\w+)$", page("reference/corellm.md"), re.MULTILINE))
    assert shown == set(corellm.__all__) - elsewhere
    shown = set(re.findall(r"^::: corellm_testing\.(\w+)$", page("reference/testing.md"), re.MULTILINE))
    assert shown == set(corellm_testing.__all__)
    assert config.EngineConfig.__name__ in page("reference/config.md")


@pytest.mark.parametrize(
    "directive",
    [
        "poem",
        "help dance",
        "arguments Unknown",
        "diagram none",
        "part README.md Nowhere",
        "part NO.md",
        "quote a b",
        "survey all",
    ],
)
def test_a_wrong_directive_fails_the_build(directive: str) -> None:
    """A wrong directive raises, with the directive in the message."""
    with pytest.raises(ValueError, match=re.escape(directive)):
        directives.expand(f"before\n\n<!-- generate: {directive} -->\n", "index.md")


def test_a_quotation_is_the_source() -> None:
    """It has decorator and docstring, without indentation; an unknown name fails the build."""
    file = "plugins/llava/src/corellm_llava/__init__.py"
    quoted = directives.expand(f'[Llava.get_placeholder_str](../{file} "quote")', "index.md")
    title, *lines, _ = quoted.splitlines()
    assert title == f'```python title="{file}"'
    source = inspect.getsource(Llava.get_placeholder_str)
    assert [line.strip() for line in lines] == [line.strip() for line in source.splitlines()]
    assert lines[0] == "@hookimpl"
    with pytest.raises(ValueError, match=r"cannot quote Llava\.nothing"):
        directives.expand(f'[Llava.nothing](../{file} "quote")', "index.md")


def test_a_constant_is_quoted_with_its_docstring() -> None:
    """A string after it is its docstring."""
    assert quotes.definition('A = 1\n"""One."""\nB = 2\n', "A") == 'A = 1\n"""One."""'
    assert quotes.definition('A = 1\n"""One."""\nB: int = 2\n', "B") == "B: int = 2"


def test_what_only_tests_need_is_not_shown() -> None:
    """Hidden blocks stay out of the site."""
    text = "a\n\n<!-- setup\nx = 1\n-->\n\n<!-- not run: a sketch -->\nb\n"
    assert directives.expand(text, "index.md").split() == ["a", "b"]


def test_included_pages(tmp_path: Path) -> None:
    """Heading levels are shifted, comments in code are not headings, links lead to pages of the site or are removed."""
    text = inclusion.part("plugins/index.md", "CONTRIBUTING.md", "Which hook for which idea")
    assert "](hooks/takes.md#get_dummy_text)" in text
    assert "](../reference/hookspecs.md)" in text
    whole = inclusion.part("changelog.md", "CHANGELOG.md")
    assert whole.startswith("## ")
    chapter = inclusion.chapter("run/families.md", "plugins/llava/README.md")
    assert chapter.startswith("## corellm-llava")
    assert "[corellm](../index.md)" in chapter
    assert "# sets everything up" in inclusion.part("index.md", "README.md", "Try it")

"""A wrong page fails, so `test_pages.py` can fail."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from pathlib import Path

import jinja2
import pytest
import yaml

from corellm.errors import ContractError
from tests.docs.blocks import find_blocks
from tests.docs.reader import reading
from tests.docs.stand_ins import write_published

FENCE = "```"


def follow(text: str, tmp_path: Path) -> None:
    """Follow a page with this text; `~~~` stands for a fence."""
    (tmp_path / "page.md").write_text(text.replace("~~~", FENCE))
    here = tmp_path / "here"
    here.mkdir()
    with reading(here) as reader:
        reader.follow(find_blocks(tmp_path / "page.md", "page.md"))


WRONG = [
    ("~~~\nx\n~~~\n", "no kind of block is ''"),
    ("~~~haskell\nx\n~~~\n", "no kind of block is 'haskell'"),
    ("~~~python\nprint(1)\n~~~\n\n~~~text\n2\n~~~\n", "page.md:6 says\n\n2\n\nbut it is\n\n1"),
    ("~~~python\n1 / 0\n~~~\n\n~~~text\nZeroDivisionError: nothing\n~~~\n", "division by zero"),
    ("~~~text\n2\n~~~\n", "a text that nothing prints"),
    ("<!-- not run: lazy -->\n\n~~~python\nprint(1)\n~~~\n", "only text may be left untried"),
    ("~~~console\n$ echo one\ntwo\n~~~\n", "but it is\n\none"),
    ("~~~console\necho one\n~~~\n", "begins with a command"),
    ("~~~sh\ncurl example.org\n~~~\n", "no kind of command begins with 'curl'"),
    ("~~~sh\nls nothing-here\n~~~\n", "ended with 2"),
    ("Indented:\n\n    make coffee\n", "the Makefile has no coffee"),
    ("~~~sh\npip install ./plugins/unknown\n~~~\n", "there is no ./plugins/unknown"),
    ("~~~sh\npip install '.[teapot]'\n~~~\n", "has no extra teapot"),
    ("~~~sh\npip install leftpad\n~~~\n", "no part of this project uses it"),
    ("~~~sh\npip install torch==1.0\n~~~\n", "pinned to torch==2"),
    ("~~~sh\ncorellm run demo --no-such-option\n~~~\n", "unknown option --no-such-option"),
    ("~~~sh\ncorellm run unknown/model 'Hello'\n~~~\n", "add it to PUBLISHED"),
    ('~~~python title="a.py"\nx = 1\n~~~\n\n~~~diff title="a.py"\n-x = 2\n+x = 3\n~~~\n', "0 times"),
    ("~~~diff\n-a\n+b\n~~~\n", "a diff has a title"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_wrong_pages_fail(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake on a page raises, with its place."""
    monkeypatch.setattr("corellm.loading.checkpoint.download", lambda name, *_, **__: write_published(name, tmp_path))
    with pytest.raises((AssertionError, ZeroDivisionError), match=re.escape(words)):
        follow(text, tmp_path)


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("~~~toml\n[a\n~~~\n", tomllib.TOMLDecodeError),
        ("~~~json\n{'a': 1}\n~~~\n", json.JSONDecodeError),
        ("~~~yaml\na: [\n~~~\n", yaml.YAMLError),
        ("~~~jinja\n{% if %}\n~~~\n", jinja2.TemplateSyntaxError),
    ],
)
def test_data_that_does_not_parse_fails(broken: str, error: type[Exception], tmp_path: Path) -> None:
    """In any language."""
    with pytest.raises(error):
        follow(broken, tmp_path)


def test_an_error_that_is_not_shown_fails(tmp_path: Path) -> None:
    """If Python raises, the page must show the error."""
    with pytest.raises(ZeroDivisionError):
        follow("~~~python\n1 / 0\n~~~\n", tmp_path)


def test_an_adapter_that_breaks_the_contract_fails(tmp_path: Path) -> None:
    """Any class with a contract version is checked as an adapter."""
    with pytest.raises(ContractError, match="required hook"):
        follow("~~~python\nclass Half:\n    contract = 1\n\n    def __init__(self, context): ...\n~~~\n", tmp_path)


@pytest.mark.parametrize(("printed", "shown"), [("2", True), ("1\\n2", True), ("0\\n1\\n2", True), ("1\\n12", False)])
def test_left_out_lines_may_be_none(printed: str, shown: bool, tmp_path: Path) -> None:
    """A stream has as many lines as its reader is quick; the line after them must be there."""
    with contextlib.nullcontext() if shown else pytest.raises(AssertionError, match="but it is"):
        follow(f"~~~python\nprint('{printed}')\n~~~\n\n~~~text\n...\n2\n~~~\n", tmp_path)


def test_a_right_page_passes(tmp_path: Path) -> None:
    """Files, changes to them, what is installed from them, and blocks in lists."""
    follow(
        "1. Write it:\n\n"
        '   ~~~toml title="greet/pyproject.toml"\n   [build-system]\n   requires = ["hatchling"]\n'
        '   build-backend = "hatchling.build"\n   [project]\n   name = "greet"\n   version = "1"\n   ~~~\n\n'
        '2. Say it:\n\n   ~~~python title="greet/greet.py"\n   print("hello")\n   ~~~\n\n'
        '~~~diff title="greet/greet.py"\n-print("hello")\n+print("good morning")\n~~~\n\n'
        "~~~console\n$ pip install -e ./greet\n$ python -m greet\ngood ...\n~~~\n\n"
        "<!-- setup\nword = 'hidden'\n-->\n\n~~~python\nprint(word)\n~~~\n\n~~~text\nhidden\n~~~\n",
        tmp_path,
    )

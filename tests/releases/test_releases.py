"""Which releases are tried, what is read of their tests, and the page of them."""

from __future__ import annotations

import re

from packaging.version import Version

from corellm.transformers_releases import TESTED
from tests.kinds.outcome import Outcome
from tests.releases.__main__ import PAGE, page, row, rows_of
from tests.releases.environment import Environment, newest_of_minors
from tests.releases.outcome import Counted, compared, counted

_REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.TestA" name="test_one[x]"/>
<testcase classname="tests.a" name="test_two"><failure message="assert 1 == 2&#10;  and more">...</failure></testcase>
<testcase classname="tests.b" name="test_three"><error message="it did not start">...</error></testcase>
<testcase classname="tests.b" name="test_four"><skipped message="not here"/></testcase>
</testsuite></testsuites>"""


def test_the_newest_release_of_each_minor_version() -> None:
    """Not those before or behind the range, not those before the release, not those for one kind of machine."""
    listed = ["5.18.0", "5.17.0", "5.17.1", "5.16.3", "5.18.1rc1", "6.0.0", "5.20.0+cpu", "5.19.10", "5.19.9"]
    assert newest_of_minors(listed, Version("5.17"), Version("6")) == ["5.17.1", "5.18.0", "5.19.10"]


def test_what_failed_is_named_with_its_reason() -> None:
    assert counted(_REPORT) == Counted(1, ("a::test_two: assert 1 == 2 and more", "b::test_three: it did not start"))


def test_kinds_are_compared_with_the_page_of_kinds() -> None:
    """What is refused there, or needs a library that was not there, need not pass; what fails is always told."""
    stated = {
        "a": Outcome("passes", "image"),
        "b": Outcome("passes", "image; video with torchvision"),
        "c": Outcome("passes", "image with timm"),
        "d": Outcome("refused", "why"),
    }
    found = {kind: Outcome("refused", f"{kind} is\nodd") for kind in "abc"} | {"d": Outcome("fails", "it differs")}
    assert compared(found, stated, with_libraries=False).failed == (
        "a: refused: a is odd", "b: refused: b is odd", "d: fails: it differs",
    )  # fmt: skip
    assert "c: refused: c is odd" in compared(found, stated, with_libraries=True).failed
    assert compared(stated, stated, with_libraries=True) == Counted(3)


def test_a_page_is_read_as_it_is_written() -> None:
    """Its rows stand in the order of their releases, whatever characters a reason has."""
    rows = [
        row(Environment(library, release, "python"), Counted(9), Counted(2, (f"<a> | {release}", "b")))
        for library, release in (("torch", "2.9.0"), ("transformers", "5.20.0"), ("transformers", "5.9.0"))
    ]
    text = page(rows)
    assert list(rows_of(text).values()) == [rows[2], rows[1], rows[0]]
    assert page(list(rows_of(text).values())) == text


def test_the_committed_page_has_the_oldest_release() -> None:
    """The oldest release of transformers; and nowhere a test of parity fails."""
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert f"transformers {'.'.join(map(str, TESTED[0]))}" in rows
    assert all(re.match(r"(\d+) of \1 pass", line.split(" | ")[1]) for line in rows.values())
    assert page(list(rows.values())) == PAGE.read_text(encoding="utf-8")

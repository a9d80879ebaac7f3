"""`--contract-quick` leaves out what is marked slow, says so, and is nowhere in the way."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence

import pytest

from corellm_testing import AdapterContract
from corellm_testing.quick import is_slow
from corellm_testing.rules import rules_of

ALONE = ("--disable-plugin-autoload", "-p", "no:cacheprovider", "--strict-markers", "-W", "error")
OURS = (*ALONE, "-p", "corellm_testing.quick")
XDIST = ("-p", "xdist.plugin", "-n", "2")
TINY = """
import pytest
from corellm_testing.quick import slow
from corellm_testing.rules import Rules

class TestTiny(Rules):
    def test_cheap(self):
        pass

    @slow()
    def test_dear(self):
        pass

    @slow(but="2-a")
    @pytest.mark.parametrize("letter", ["a", "b"])
    @pytest.mark.parametrize("number", [1, 2])
    def test_cases(self, number, letter):
        pass
"""


@pytest.fixture
def tiny(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a contract class of three rules, of which two are slow: six tests, of which four."""
    pytester.makepyfile(test_tiny=TINY)
    return pytester


@pytest.mark.parametrize("processes", [(), XDIST], ids=["one process", "xdist"])
def test_what_is_left_out_is_named(tiny: pytest.Pytester, processes: Sequence[str]) -> None:
    """Slow rules are not run, but for the cases they keep; one line names them and the command, which runs them."""
    result = tiny.runpytest_subprocess(*OURS, *processes, "--contract-quick", "test_tiny.py")
    result.assert_outcomes(passed=2, deselected=0 if processes else 4)  # xdist does not count them
    (line,) = re.findall(r"^--contract-quick left out .*$", result.stdout.str(), re.MULTILINE)
    said, command = line.split("; all rules: ")
    assert "2 slow rules: test_dear, test_cases but for [2-a]" in said
    tiny.run(sys.executable, "-m", *shlex.split(command)).assert_outcomes(passed=6)


def test_without_the_option_all_rules_run(tiny: pytest.Pytester) -> None:
    """Nothing is left out, and nothing said of it."""
    result = tiny.runpytest_subprocess(*OURS)
    result.assert_outcomes(passed=6)
    result.stdout.no_fnmatch_line("*left out*")


def test_in_pytests_configuration(tiny: pytest.Pytester) -> None:
    """There the option is not part of the command: the line says where to remove it."""
    tiny.makeini("[pytest]\naddopts = --contract-quick")
    result = tiny.runpytest_subprocess(*OURS)
    result.stdout.fnmatch_lines(["--contract-quick left out 2 *without * in pytest's configuration"])


def test_what_is_not_selected_is_not_said_to_be_left_out(tiny: pytest.Pytester) -> None:
    """Where `-k` takes slow rules away, the line does not name them."""
    result = tiny.runpytest_subprocess(*OURS, "--contract-quick", "-k", "cheap or dear")
    result.stdout.fnmatch_lines(["--contract-quick left out 1 slow rule: test_dear; *"])
    result = tiny.runpytest_subprocess(*OURS, "--contract-quick", "-k", "cheap")
    result.stdout.no_fnmatch_line("*left out*")


def test_where_the_plugin_is_not_loaded(tiny: pytest.Pytester) -> None:
    """Slow rules are tests like any others, and the option is unknown."""
    tiny.runpytest_subprocess(*ALONE).assert_outcomes(passed=6)
    result = tiny.runpytest_subprocess(*ALONE, "--contract-quick")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --contract-quick*"])


def test_help_teaches(pytester: pytest.Pytester) -> None:
    """`pytest -h` says what the option leaves out, and what to do afterwards."""
    shown = " ".join(pytester.runpytest_subprocess(*OURS, "-h").stdout.str().split())
    assert "--contract-quick leave out" in shown
    assert "all rules" in shown


def test_the_quick_contract(pytester: pytest.Pytester) -> None:
    """All rules of a family's contract that are not slow remain, and one case of the comparison of outputs."""
    options = (*OURS, "--contract-quick", "--collect-only", "-q", "--pyargs")
    result = pytester.runpytest_subprocess(*options, "corellm_llava.contract")
    collected = re.findall(r"::(test_.+)$", result.stdout.str(), re.MULTILINE)
    rules = rules_of(AdapterContract)
    kept = {name for name, rule in rules.items() if not is_slow(rule)}
    assert {name.partition("[")[0] for name in collected} == kept | {"test_greedy_equals_the_reference"}
    assert [name for name in collected if is_slow(rules[name.partition("[")[0]])] == [
        "test_greedy_equals_the_reference[16-prefix-caching]"
    ]
    common = ("same_request_twice", "placeholders_are_refused", "text_and_media_equal_the_hf_processor")
    assert all(any(word in name for name in kept) for word in common)

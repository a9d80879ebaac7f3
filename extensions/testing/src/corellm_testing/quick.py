"""The pytest option `--contract-quick`: leaves the slow rules of contract classes out, and says which.

pytest imports this module in every project of an environment with corellm: it imports nothing but pytest.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

OPTION = "--contract-quick"
_BUT = "slow_but"
_LEFT_OUT = pytest.StashKey[list[str]]()
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def slow(but: str = "") -> Callable[[_Rule], _Rule]:
    """Return a decorator of rules that the option leaves out.

    A mark of pytest's would have to be registered, also where this module is not loaded as a plugin.

    Args:
        but: id of the parameters of a case that is kept; empty for none.
    """

    def mark(rule: _Rule) -> _Rule:
        setattr(rule, _BUT, but)
        return rule

    return mark


def is_slow(rule: Any) -> bool:
    """Whether the option leaves a rule out, or most of its cases."""
    return hasattr(rule, _BUT)


def is_quick(config: pytest.Config) -> bool:
    """Whether the option is given."""
    return bool(config.getoption(OPTION, default=False))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("corellm").addoption(
        OPTION,
        action="store_true",
        help="leave out the slow rules of corellm's contract (corellm_testing.AdapterContract), most of which load "
        "further models, make checkpoints or start processes: for while you edit an adapter. The end of the run names "
        "what was left out, and the command for all rules: run that before you commit or publish",
    )


@pytest.hookimpl(trylast=True)  # what -k and -m deselect is not reported
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the slow rules; without the option, do nothing."""
    if not is_quick(config):
        return
    left_out = [item for item in items if _is_left_out(item)]
    if not left_out:
        return
    items[:] = [item for item in items if not _is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    rules = config.stash[_LEFT_OUT] = list(dict.fromkeys(_named(_rule(item)) for item in left_out))
    if hasattr(config, "workeroutput"):  # a process of pytest-xdist, which prints nothing
        config.workeroutput[OPTION] = rules


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process of pytest-xdist left out: all leave out the same."""
    if rules := getattr(node, "workeroutput", {}).get(OPTION):
        node.config.stash[_LEFT_OUT] = rules


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write what was left out, and the command that runs all rules."""
    if rules := config.stash.get(_LEFT_OUT, []):
        count = f"{len(rules)} slow rule{'s' if len(rules) > 1 else ''}"
        terminalreporter.write_line(f"{OPTION} left out {count}: {', '.join(rules)}; {_how_to_run_all(config)}")


def _rule(item: pytest.Item) -> Any:
    return getattr(item, "function", None)


def _is_left_out(item: pytest.Item) -> bool:
    rule, case = _rule(item), getattr(item, "callspec", None)
    return is_slow(rule) and (case is None or case.id != getattr(rule, _BUT))


def _named(rule: Any) -> str:
    but = getattr(rule, _BUT)
    return f"{rule.__name__} but for [{but}]" if but else str(rule.__name__)


def _how_to_run_all(config: pytest.Config) -> str:
    given = [str(argument) for argument in config.invocation_params.args]
    if OPTION not in given:
        return f"all rules run without {OPTION} in pytest's configuration"
    return f"all rules: {shlex.join(['pytest', *(argument for argument in given if argument != OPTION)])}"

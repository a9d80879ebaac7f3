"""Engines of each model on each set of kernels that the processor runs; two models on the best are the short form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.same_results.engines import Engines, kernel_sets, kernels
from tests.same_results.models import MODELS

SETS = kernel_sets()
IN_SHORT = ("llava", "gemma3")


class Progress:
    """Says how many batches have passed, behind each test that ran some."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._sums = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a test counted."""
        counts = dict(report.user_properties).get("counts")
        if report.when == "call" and report.passed and isinstance(counts, dict):
            self._sums.update(counts)
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            said = ", ".join(f"{value:,} {name}" for name, value in self._sums.items())
            terminal.write_line(f"  promise 35: {said}: the same bit for bit")


def pytest_configure(config: pytest.Config) -> None:
    """Tell of the long form's progress."""
    if config.getoption("markexpr") == "full":
        config.pluginmanager.register(Progress(config), "promise-35")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((chosen, name), marks=() if name in IN_SHORT and chosen == SETS[0] else pytest.mark.full)
        for chosen in SETS
        for name in MODELS
    ],
    ids="-".join,
)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """The engines of a model on a set of kernels."""
    chosen, name = request.param
    with kernels(chosen):
        made = Engines(MODELS[name], tmp_path_factory.mktemp("models"))
        yield made
        made.close()

"""For every test, of the core, the kernels, extensions and plugins: idle threads sleep, nothing is downloaded,
transformers is quiet, and without a GPU Triton's kernels are interpreted.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# read when Triton is first imported, by any module
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")

import hypothesis
import pytest

gc.disable()  # until all modules are imported

_NO_HUGE_PAGES = 41
"""PR_SET_THP_DISABLE of prctl(2), also for the processes that this one starts."""
# an engine's first writes take a dozen of two megabytes each: a third of loading a tiny model, which fills none of them
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_NO_HUGE_PAGES, 1, 0, 0, 0)

# how fast an example runs says more of the machine's other work than of the code
hypothesis.settings.register_profile("corellm", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("corellm")


pytest_plugins = [
    "pytester",
    "tests.fixtures",
    "tests.processor_time",
    "tests.warm_starts",
    "extensions.testing.tests.mutants.selection",
    "extensions.testing.tests.mutants.table",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let classes with contracts start first: each runs in one process, and none should begin when the others end."""
    from corellm_testing.rules import Rules

    items.sort(key=lambda item: not issubclass(getattr(item, "cls", None) or object, Rules))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leave what was imported and collected out of garbage collection: it would be walked through time and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers() -> None:
    """Its progress bars and advice would drown a failure.

    transformers formats each configuration that it reads as text, for log messages that tests do not show. That takes a
    third of the time of reading one, so configurations have a short `repr` here.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    transformers.PreTrainedConfig.__repr__ = lambda self: f"<{type(self).__name__}>"


@pytest.fixture(scope="session", autouse=True)
def _loggers_of_torch_propagate() -> None:
    """Pytest gives its handlers to each logger that does not propagate, in each of a test's phases.

    Forty of torch's do not: that takes longer than most tests. Here they hand what they log to torch's topmost logger,
    which has the same handler.
    """
    import torch  # noqa: F401 - it makes them

    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger) and not logger.propagate:
            logger.propagate = True
            logger.handlers.clear()


@pytest.fixture(scope="session", autouse=True)
def _installed_metadata_are_read_once() -> Iterator[None]:
    """Each load of a model asks all distributions for their entry points, and those of the environment stay."""

    def once(read: property) -> property:
        known: dict[str, Any] = {}

        def kept(distribution: Distribution) -> Any:
            path = str(getattr(distribution, "_path", ""))
            if not path.startswith(sys.prefix):  # what a test installs elsewhere
                return read.__get__(distribution)
            if path not in known:
                known[path] = read.__get__(distribution)
            return known[path]

        return property(kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Distribution, "entry_points", once(vars(Distribution)["entry_points"]))
        patch.setattr(Distribution, "metadata", once(vars(Distribution)["metadata"]))
        yield


@pytest.fixture(scope="session", autouse=True)
def _media_processes_start_with_their_first_file() -> Iterator[None]:
    """Most models that tests load decode none, and starting one ahead takes as long as loading such a model."""
    from corellm.media.pool import MediaPool

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MediaPool, "start", lambda pool: None)
        yield

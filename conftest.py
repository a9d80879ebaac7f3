"""For every test, of the core, the kernels, extensions and plugins: idle threads sleep, nothing is downloaded,
transformers is quiet, and without a GPU Triton's kernels are interpreted.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# read when Triton is first imported, by any module
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # several processes share the processors
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

gc.disable()  # until all modules are imported

# how fast an example runs says more of the machine's other work than of the code
hypothesis.settings.register_profile("corellm", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("corellm")


pytest_plugins = [
    "pytester",
    "tests.fixtures",
    "tests.processor_time",
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
    """Its progress bars and advice would drown a failure."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

"""Processes of pytest-xdist, engines and servers that tests start, and what renders and decodes for them, are forked
from warm processes.

A fresh interpreter takes four seconds of processor time for an engine and seven for a server with its engine, nearly
all of it imports; a process of pytest-xdist has most of these, too. All have one warm process, of which each process of
pytest-xdist gets a copy. Tests marked `fresh_starts` have fresh interpreters: those of what a process does as it starts
or loads.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from execnet.gateway_io import popen_bootstrapline

from tests.warm_process import HANDED, WarmProcess, fork_modules

ENGINE = "corellm.engine.process.engine_main"
_IMPORTS = (
    ENGINE,
    "corellm.loading.deferred_imports:import_deferring",
    "corellm.loading.loading",
    "corellm.serving",
    "corellm_kernels.cpu.fusing",
    "corellm_llava",
    "corellm_server.commands.serve",
    "corellm_server.running",
    "corellm_server.service",
    "soundfile",
    "soxr",
    "transformers.models.auto.processing_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.clip.modeling_clip",
    "transformers.models.llama.modeling_llama",
    "transformers.models.llava.modeling_llava",
)
"""What an engine of the tiny LLaVA imports, and a server: other models have more, and import it themselves."""
_ENGINES_ALONE = ("corellm.plugin.extensions:load_extensions",)
"""What processes of pytest-xdist import after pytest, which rewrites assertions in it."""
_IMAGES = ("numpy", "PIL.Image", "corellm.media.image")
_CHILDREN = {
    "corellm.templates.worker": (),
    "corellm.media.worker": _IMAGES,
    "corellm_media.worker": (*_IMAGES, "corellm_media.audio"),
}

_is_fresh = False


def pytest_configure(config: pytest.Config) -> None:
    """Have the modules forked, where there is what the warm process needs."""
    config.addinivalue_line("markers", "fresh_starts: processes that the test starts are fresh interpreters")
    if config.getoption("tx", None) and not hasattr(config, "workerinput"):  # several processes share the processors
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        # CUDA cannot be used in a fork of a process that asked which GPUs there are, as some libraries do when imported
        if sys.platform == "linux" and not Path("/dev/nvidiactl").exists():
            workers = WarmProcess(_IMPORTS, dict(os.environ), copy_imports=_ENGINES_ALONE)
            config.add_cleanup(workers.close)
            config.add_cleanup(fork_modules({popen_bootstrapline: workers}))
    elif sys.platform == "linux":
        handed = os.environ.pop(HANDED, None)
        asked = None if handed is None else socket.socket(fileno=int(handed))
        engines = WarmProcess((*_IMPORTS, *_ENGINES_ALONE), dict(os.environ), {"corellm": [ENGINE]}, asked=asked)
        children = {name: WarmProcess([name, *imports]) for name, imports in _CHILDREN.items()}
        for warm in (engines, *children.values()):
            config.add_cleanup(warm.close)
        # a run of pytest within a test has warm processes of its own: what starts after it must not use those
        undo = fork_modules({ENGINE: engines, "corellm": engines, **children}, lambda: not _is_fresh)
        config.add_cleanup(undo)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Note for a test, and the fixtures that it is the first to need, what is asked for."""
    global _is_fresh
    _is_fresh = item.get_closest_marker("fresh_starts") is not None
    return (yield)

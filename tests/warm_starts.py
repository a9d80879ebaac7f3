"""Engines and servers that tests start, and what renders and decodes for them, are forked from warm processes.

A fresh interpreter takes four seconds of processor time for an engine and seven for a server with its engine, nearly
all of it imports. Tests marked `fresh_starts` have such ones: those of what a process does as it starts or loads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator

import pytest

from tests.warm_process import WarmProcess, fork_modules

ENGINE = "corellm.engine.process.engine_main"
_IMPORTS = (
    ENGINE,
    "corellm.loading.deferred_imports:import_deferring",
    "corellm.plugin.extensions:load_extensions",
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
    if sys.platform == "linux":
        engines = WarmProcess(_IMPORTS, dict(os.environ), {"corellm": [ENGINE]})
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

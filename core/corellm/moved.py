"""Rooms that left the core for distributions of their own: their old names work for one more version, and say so.

Knows names of packages alone.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MOVED = {
    "corellm.server": "corellm_server",
    "corellm.server_offers": "corellm_server.offers",
    "corellm.fetching.settings": "corellm.fetch_settings",
    "corellm.fetching": "corellm_server.fetching",
    "corellm.loadgen": "corellm_server.loadgen",
    "corellm.testing.checkpoints": "corellm.tiny_checkpoints",
    "corellm.testing": "corellm_testing",
    "corellm.inspection": "corellm_testing.inspection",
    "corellm.scaffold": "corellm_testing.scaffold",
    "corellm.pooling": "corellm_pooling",
    "corellm.pooling_outputs": "corellm_pooling.results",
    "corellm.pooling_params": "corellm_pooling.params",
    "corellm.lora_request": "corellm_lora.lora_request",
    "corellm.text_encoders": "corellm_pooling.text_encoders",
    "corellm.similarity": "corellm_pooling.similarity",
    "corellm.absent": "corellm_vllm.absent",
    "corellm.worker.defaults": "corellm.modelling.defaults",
    "corellm.worker.device_sampling": "corellm.sampling.device_sampling",
    "corellm.worker.logit_edits": "corellm.sampling.logit_edits",
}
"""New names of packages by their old ones; the first that fits."""


class OldNames(MetaPathFinder, Loader):
    """Imports what `MOVED` names, and its modules, as the same modules that the new names give."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return this object as the loader of an old name.

        Raises:
            MissingExtraError: the distribution is not installed.
        """
        new = _new_name(fullname)
        if new is None:
            return None
        has_others = any(old.startswith(f"{fullname}.") for old in MOVED)  # which may be found where it is not
        if not has_others:
            require(fullname, new)
        return ModuleSpec(fullname, self, is_package=has_others)

    def create_module(self, spec: ModuleSpec) -> None:
        """Make an empty module, which the real one replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the real module in the place of an empty one."""
        old, new = module.__name__, _new_name(module.__name__)
        assert new is not None
        if find_spec(new.partition(".")[0]) is None:
            setattr(module, "__getattr__", lambda name: _absent(name, old, new))  # noqa: B010 - of modules a function
            return
        warnings.warn(f"{old} is {new} now; the old name goes with corellm 0.4", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)
        for child in MOVED:
            if child.startswith(f"{old}."):
                setattr(sys.modules[old], child.removeprefix(f"{old}."), importlib.import_module(MOVED[child]))


def _new_name(name: str) -> str | None:
    """Return what a module is called now; None for one that did not move."""
    found = next((old for old in MOVED if name == old or name.startswith(f"{old}.")), None)
    return None if found is None else MOVED[found] + name.removeprefix(found)


def _absent(name: str, old: str, new: str) -> Any:
    """Refuse a name of a module that is not installed; Python's own are looked for in every module."""
    if name.startswith("__"):
        raise AttributeError(f"module {old!r} has no attribute {name!r}")
    require(old, new)


def require(old: str, new: str) -> None:
    """Do nothing if a module is installed.

    Raises:
        MissingExtraError: it is not; says what to install.
    """
    distribution = new.partition(".")[0]
    if find_spec(distribution) is None:
        from corellm.errors import MissingExtraError, install_hint

        folder = distribution.removeprefix("corellm_")
        raise MissingExtraError(f"{old} is {new}, which comes with {install_hint(folder)}")

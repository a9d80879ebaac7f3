"""Old names of rooms that left the core give the same modules and a warning; without them, what to install."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec

import pytest

import corellm_server.limits
from corellm import moved, tiny_checkpoints
from corellm.errors import MissingExtraError


def forget(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As if the names had not been imported yet."""
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("old", moved.MOVED)
def test_an_old_name_is_the_new_module(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is the same object, and says where it went."""
    forget(monkeypatch, "corellm.testing", old)  # the package of the parts of tiny checkpoints is gone, too
    with pytest.warns(DeprecationWarning, match=r"now; the old name goes") as warned:
        assert importlib.import_module(old) is importlib.import_module(moved.MOVED[old])
    assert moved.MOVED[old] in str(warned.list[-1].message)


def test_modules_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of a moved package is no second copy: its classes are the same; its own name stays."""
    forget(monkeypatch, "corellm.server", "corellm.server.limits")
    with pytest.warns(DeprecationWarning, match="corellm_server"):
        from corellm.server.limits import RequestLimits  # type: ignore[import-not-found]
    assert RequestLimits is corellm_server.limits.RequestLimits
    assert corellm_server.limits.__spec__.name == "corellm_server.limits"


def test_without_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the folder of a checkout."""
    forget(monkeypatch, "corellm.server", "corellm.server.limits")
    monkeypatch.setattr(moved, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="extensions/server"):
        importlib.import_module("corellm.server.limits")


def test_parts_of_tiny_checkpoints_need_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stayed in the core: a plugin that was written for their old name runs; the rest of their room is missing."""
    forget(monkeypatch, "corellm.testing", "corellm.testing.checkpoints", "corellm.testing.rules")
    monkeypatch.setattr(moved, "find_spec", lambda name: None if name == "corellm_testing" else find_spec(name))
    with pytest.warns(DeprecationWarning, match=r"corellm\.tiny_checkpoints"):
        from corellm.testing.checkpoints import spare  # type: ignore[import-not-found]
    assert spare is tiny_checkpoints.spare
    assert not hasattr(sys.modules["corellm.testing"], "__file__")  # Python's `inspect` asks every module
    with pytest.raises(MissingExtraError, match="extensions/testing"):
        from corellm.testing import AdapterContract  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(MissingExtraError, match="extensions/testing"):
        importlib.import_module("corellm.testing.rules")


def test_what_never_was() -> None:
    """It is not found, as ever."""
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        importlib.import_module("corellm.nonsense")

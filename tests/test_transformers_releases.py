"""Which releases of transformers are supported is stated alike everywhere; others are warned of; how they differ."""

from __future__ import annotations

import inspect
import re
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaModel
from transformers.models.mamba.modeling_mamba import MambaMixer

from corellm.errors import UntestedTransformersWarning
from corellm.loading import loading
from corellm.transformers_releases import TESTED, cache_argument, no_cache, warn_if_untested

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = (".".join(map(str, version)) for version in TESTED)


def _warned(monkeypatch: pytest.MonkeyPatch, installed: str) -> list[Any]:
    """The warnings of two loads with a release of transformers."""
    monkeypatch.setattr("transformers.__version__", installed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            warn_if_untested()
    return caught


@pytest.mark.parametrize("installed", ["5.24.1", "5.25.0.dev0", "6.1.2", "5.16.3"])
def test_a_release_that_was_not_tested_warns_once(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    """It names the release, those that were tested, and the way out."""
    (warning,) = _warned(monkeypatch, installed)
    assert warning.category is UntestedTransformersWarning
    assert all(part in str(warning.message) for part in (installed, OLDEST, f"transformers=={NEWEST}"))


@pytest.mark.parametrize("installed", [OLDEST, "5.18.0", "5.20.2", NEWEST])
def test_a_release_in_the_tested_range_does_not_warn(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    assert not _warned(monkeypatch, installed)


def test_loading_an_engine_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of the checkpoint is read that may fail for that reason."""

    def fail(*_: Any) -> None:
        raise RuntimeError("it fails")

    monkeypatch.setattr("transformers.__version__", "5.99.0")
    monkeypatch.setattr(loading, "open_model", fail)
    config: Any = SimpleNamespace(model=SimpleNamespace(model="tiny"))
    with pytest.warns(UntestedTransformersWarning, match=r"5\.99\.0"), pytest.raises(Exception, match="it fails"):
        loading.load(config, SimpleNamespace())  # type: ignore[arg-type]  # nothing of it is looked at


def test_the_range_is_stated_alike_everywhere() -> None:
    """By every distribution, by the development install, and by the Makefile for the tests on the oldest."""
    oldest = OLDEST.removesuffix(".0")
    for file in (
        ROOT / "pyproject.toml",
        *ROOT.glob("plugins/*/pyproject.toml"),
        *ROOT.glob("examples/*/pyproject.toml"),
    ):
        required = tomllib.loads(file.read_text("utf-8"))["project"]["dependencies"]
        assert [one for one in required if one.startswith("transformers")] == [f"transformers>={oldest},<6"], file
    assert f"\ntransformers=={NEWEST}\n" in (ROOT / "requirements-dev.txt").read_text("utf-8")
    assert re.findall(r"^OLDEST := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE) == [OLDEST]


@pytest.mark.parametrize("kind", [LlamaAttention, LlamaDecoderLayer, LlamaModel, MambaMixer])
def test_transformers_modules_take_a_cache_by_a_name_that_is_not_deprecated(kind: type[nn.Module]) -> None:
    """In the installed release."""
    module = kind.__new__(kind)
    name = cache_argument(module)
    assert no_cache(module) == {name: None}
    assert f'deprecate_kwarg("{name}"' not in Path(inspect.getfile(kind)).read_text("utf-8")


def test_the_newest_name_is_taken() -> None:
    """A module that takes none gets none."""

    class Both(nn.Module):
        def forward(self, hidden_states: Any, past_key_values: Any = None, cache: Any = None) -> None:
            """Take a cache by either name."""

    class Without(nn.Module):
        def forward(self, hidden_states: Any, **more: Any) -> None:
            """Take no cache."""

    assert (cache_argument(Both()), no_cache(Without())) == ("cache", {})

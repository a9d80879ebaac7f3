"""Models whose decoder attends to states: refused where nothing runs them, before weights are read; others never."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from corellm.config import EngineConfig
from corellm.errors import ConfigError, MissingExtraError
from corellm.loading import attended_states
from corellm.loading.locating import locate
from corellm.loading.opening import OpenedModel, open_model
from corellm_florence2 import tiny as florence2
from corellm_llava import tiny as llava
from corellm_mllama import tiny as mllama
from corellm_transformers import tiny as generic

Make = Callable[[Path], Path]
WHISPER = partial(generic.make_tiny_checkpoint, architecture="WhisperForConditionalGeneration")


def opened(path: Path, **settings: Any) -> OpenedModel:
    """The checkpoint without weights."""
    config = EngineConfig.from_kwargs(model=str(path), **settings)
    model = open_model(config, locate(config.model))
    model.templates.close()
    return model


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (florence2.make_tiny_checkpoint, "is an encoder-decoder"),
        (WHISPER, "is an encoder-decoder"),
        (mllama.make_tiny_checkpoint, "attends to states of its items"),
    ],
)
def test_what_to_install_is_said(make: Make, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter may be older than the extension, and the generic one does not ask for it."""
    monkeypatch.setattr(attended_states, "call_extensions", lambda *_, **__: iter(()))
    with pytest.raises(MissingExtraError, match=rf"{kind}, which needs .* pip install \./extensions/encoder_decoder$"):
        opened(make(tmp_path))


def test_other_models_need_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no such states with the extension either."""
    path = llava.make_tiny_checkpoint(tmp_path)
    assert opened(path).attended is None
    monkeypatch.setattr(attended_states, "call_extensions", lambda *_, **__: iter(()))
    assert opened(path).attended is None


def test_no_other_use_has_such_states(tmp_path: Path) -> None:
    """Pooling runs decoders and text encoders."""
    path = mllama.make_tiny_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="attends to states of its items, which corellm runs to generate only"):
        opened(path, runner="pooling", convert="embed")

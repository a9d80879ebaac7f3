"""Audio, and videos in files, are an extension's to read: without it a typed error says what to install."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from corellm.errors import MissingExtraError
from corellm.hookspecs import hookimpl
from corellm.media.pool import IMAGE_WORKER
from corellm.multimodal import DataParser, dummy_audios
from corellm.multimodal.media_reader import worker_module
from tests.multimodal.toy import Toy, make


@pytest.mark.parametrize(
    ("modality", "item"),
    [("video", b"any file"), ("video", "clip.mp4"), ("audio", (np.zeros(9, np.float32), 8000)), ("audio", np.zeros(9))],
)
def test_what_reads_an_item_is_named_where_it_is_missing(
    modality: str, item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images, and frames in memory, are read all the same; child processes decode images."""
    monkeypatch.setattr("corellm.multimodal.media_reader.call_extensions", lambda *_: iter(()))
    parser = DataParser(sampling_rate=16_000)
    with pytest.raises(MissingExtraError, match=rf"{modality}.* corellm-media; .*pip install ./extensions/media"):
        parser.parse({modality: item})
    assert parser.parse({"video": np.zeros((2, 4, 4, 3), np.uint8)}).get_counts() == {"video": 1}
    assert parser.parse({"image": np.zeros((4, 4, 3), np.uint8)}).get_counts() == {"image": 1}
    assert worker_module() == IMAGE_WORKER


class Hearing(Toy):
    """Takes audio."""

    @hookimpl
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"audio": 1}

    @hookimpl
    def get_data_parser(self) -> DataParser:
        return DataParser(sampling_rate=16_000)

    @hookimpl
    def get_dummy_mm_data(self) -> Mapping[str, Any]:
        return {"audio": dummy_audios(1, num_samples=9)}


def test_a_model_that_takes_audio_says_at_load_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corellm.multimodal.media_reader.call_extensions", lambda *_: iter(()))
    with pytest.raises(MissingExtraError, match="this model takes audio: audio needs corellm-media; from a checkout"):
        _ = make(Hearing()).profile


def test_children_decode_all_where_it_is_installed() -> None:
    assert worker_module() == "corellm_media.worker"

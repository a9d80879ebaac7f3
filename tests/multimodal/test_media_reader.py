"""Audio, and videos in files, are an extension's to read: without it a typed error says what to install."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corellm.errors import MissingExtraError
from corellm.media.pool import IMAGE_WORKER
from corellm.multimodal import DataParser
from corellm.multimodal.media_reader import worker_module


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


def test_children_decode_all_where_it_is_installed() -> None:
    assert worker_module() == "corellm_media.worker"

"""Mllama keeps the contract: `pytest --pyargs corellm_mllama.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from corellm_mllama import Mllama
from corellm_testing import AdapterContract

_SIZE = "refused: the tower takes one number of tiles of one size"


class TestMllama(AdapterContract):
    """Layers of text and of images; transformers is the reference."""

    adapter = Mllama
    without_effect: ClassVar[Mapping[str, str]] = {"max_image_tiles": _SIZE, "size": _SIZE}
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_embeddings_are_refused_for_a_reason": "an image has as many states whatever its tiles, and text attends "
        "to those that are no padding: embeddings alone do not say which these are",
    }

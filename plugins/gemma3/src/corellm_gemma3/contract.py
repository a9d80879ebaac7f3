"""Gemma 3 keeps the contract: `pytest --pyargs corellm_gemma3.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from corellm_gemma3 import Gemma3
from corellm_testing import AdapterContract

_SIZE = "refused: the tower takes images of one size"


class TestGemma3(AdapterContract):
    """A layer with a window and one without; transformers is the reference."""

    adapter = Gemma3
    without_effect: ClassVar[Mapping[str, str]] = {
        "do_pan_and_scan": "images of the rules are smaller than a crop; the plugin's tests have larger ones",
        "do_resize": _SIZE,
        "size": _SIZE,
        "crop_size": _SIZE,
        "do_center_crop": _SIZE,
    }
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_a_complete_prompt_stays_as_it_is": "the processor adds two line breaks beside an image to those that are "
        "there; token ids with two of them become four, as the same text does"
    }

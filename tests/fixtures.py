"""What every test may use: tiny checkpoints (made once per run), images, waiting; the conftest loads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def make_llava(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_llava(**options)`: the directory of a tiny LLaVA, written once per set of options."""
    from corellm_llava.tiny import make_tiny_checkpoint

    made: dict[str, Path] = {}

    def make(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = make_tiny_checkpoint(tmp_path_factory.mktemp("llava"), **options)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_llava(make_llava: Callable[..., Path]) -> Path:
    """The plainest tiny LLaVA."""
    return make_llava()


def random_image(width: int, height: int, seed: int) -> Image.Image:
    """An image of coloured noise with a red corner: nothing like another seed's."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[: height // 3, : width // 3] = (255, 0, 0)
    return Image.fromarray(pixels)


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    """Return once a condition holds; fail if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

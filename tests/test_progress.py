"""The progress bar of one call: what it tells on a terminal of 80 columns."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from tqdm.auto import tqdm

from corellm.progress import Progress


@pytest.mark.parametrize(("finished", "output_rate", "prompt_rate"), [(7, 9, 12), (999, 12_345, 123_456)])
def test_every_figure_fits_80_columns(
    finished: int, output_rate: int, prompt_rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far it is, how long it takes, prompts and tokens per second: none is cut off."""
    engine: Any = SimpleNamespace(num_prompt_tokens=0, num_generated_tokens=0)
    now = time.monotonic()
    monkeypatch.setattr("corellm.progress.time", SimpleNamespace(monotonic=lambda: now))
    with Progress(engine, 1000, wanted=True) as progress:
        now += 100
        engine.num_prompt_tokens, engine.num_generated_tokens = prompt_rate * 100, output_rate * 100
        for _ in range(finished):
            progress.update()
        shown = tqdm.format_meter(**{**progress._bar.format_dict, "ncols": 80, "elapsed": 100})
    assert len(shown) <= 80
    assert f" {finished}/1000 [01:40<" in shown
    assert shown.endswith(f", {finished / 100:.3g}/s, tok/s: {output_rate} output, {prompt_rate} prompt]")

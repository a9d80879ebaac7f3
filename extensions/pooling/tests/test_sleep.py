"""Models that pool sleep, and keep their weights: heads are of files that an update does not know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corellm import LLM
from corellm.errors import InvalidParameterError, RequestError
from corellm.text_models.tiny import make_tiny_checkpoint


def test_they_sleep_at_the_first_level_alone(tmp_path: Path) -> None:
    path = make_tiny_checkpoint(tmp_path)
    with LLM(path, runner="pooling", convert="embed") as llm:
        want = llm.embed("hello", use_tqdm=False)[0].outputs.embedding
        llm.sleep()
        with pytest.raises(RequestError, match="wake_up"):
            llm.embed("hello", use_tqdm=False)
        for call in (lambda: llm.sleep(2), lambda: llm.update_weights(path)):
            with pytest.raises(InvalidParameterError, match="generates text alone"):
                call()
        llm.wake_up()
        assert np.array_equal(llm.embed("hello", use_tqdm=False)[0].outputs.embedding, want)

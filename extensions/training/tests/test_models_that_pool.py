"""Models that pool sleep, and keep their weights: heads are of files that an update does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corellm import LLM
from corellm.errors import InvalidParameterError, RequestError
from corellm_testing.tiny_text import make_tiny_checkpoint


def test_they_sleep_at_the_first_level_alone(tmp_path: Path) -> None:
    path = make_tiny_checkpoint(tmp_path)
    with LLM(path, runner="pooling", convert="embed") as llm:

        def embedded() -> Any:
            outputs = llm.embed("hello", use_tqdm=False)[0].outputs
            return None if outputs is None else outputs.embedding

        want = embedded()
        assert want is not None
        llm.sleep()
        with pytest.raises(RequestError, match="wake_up"):
            embedded()
        with pytest.raises(InvalidParameterError, match="generates text alone"):
            llm.sleep(2)
        with pytest.raises(InvalidParameterError, match="generates text alone"):
            llm.update_weights(path)
        llm.wake_up()
        assert np.array_equal(embedded(), want)

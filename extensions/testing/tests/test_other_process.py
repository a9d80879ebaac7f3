"""The other process of a contract run says what went wrong in it, and goes on, or is started anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from corellm_testing.other_process import OtherProcess, OtherProcessError


def test_it_goes_on_after_an_error_and_after_its_end(tiny_llava: Path, request: pytest.FixtureRequest) -> None:
    """An error comes back with its traceback, and the next task is done; where the process ended, a new one does it."""
    config = request.config
    process = OtherProcess.of(config)
    with pytest.raises(OtherProcessError, match="nothing here"):
        process.process(tiny_llava.parent / "nothing here", [], None)
    (processed,), echo = process.process(tiny_llava, [("What?", {})], {"kept": 1})
    assert processed.token_ids
    assert echo == {"kept": 1}
    assert OtherProcess.of(config) is process
    process._process.kill()
    with pytest.raises(OtherProcessError):
        process.process(tiny_llava, [], None)
    assert OtherProcess.of(config) is not process

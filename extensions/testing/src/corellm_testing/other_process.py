"""Another process, which processes the same requests. It takes seconds to start: one serves all classes of a run."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from corellm_testing.rules import child_environment


class OtherProcessError(Exception):
    """The other process could not process the requests; the message is what it said."""


class OtherProcess:
    """A process with this one's import path and another seed for hashes of strings."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__name__}_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
        )

    @classmethod
    def of(cls, config: pytest.Config) -> OtherProcess:
        """Return the process of a run of pytest, which ends it; a new one if there is none, or none any more."""
        running = config.stash.get(_OF_RUN, None)
        if running is None or running._process.poll() is not None:
            running = config.stash[_OF_RUN] = cls()
            config.add_cleanup(running.close)
        return running

    def process(self, checkpoint: Path, requests: Sequence[Any], echo: Any) -> tuple[list[Any], Any]:
        """Return `(prompt text, media)` of each request processed there, and `echo` after the way there and back.

        Raises:
            OtherProcessError: with the traceback.
        """
        import torch

        task = pickle.dumps((str(checkpoint), torch.get_num_threads(), requests, echo))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(task, self._process.stdin)
            self._process.stdin.flush()
            result = pickle.load(self._process.stdout)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError) as error:  # it ended
            self._process.wait()
            self._errors.seek(0)
            raise OtherProcessError(self._errors.read().decode(errors="replace").strip()) from error
        if isinstance(result, str):
            raise OtherProcessError(result)
        there: tuple[list[Any], Any] = pickle.loads(result)
        return there

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


_OF_RUN = pytest.StashKey[OtherProcess]()

"""The oracle that every test here may ask: transformers' own processors, in a process of their own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

AskHF = Callable[..., Any]
"""`ask(checkpoint, text=..., images=..., videos=..., ...)`: the processor's tensors as arrays, or what it raised."""


@pytest.fixture(scope="session")
def ask_hf() -> Iterator[AskHF]:
    """Transformers' processor of a checkpoint; see `hf_oracle`."""
    program = Path(__file__).with_name("hf_oracle.py")
    with subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(checkpoint: Path, **request: Any) -> Any:
            pickle.dump((str(checkpoint), request), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)

        yield ask
        process.stdin.close()

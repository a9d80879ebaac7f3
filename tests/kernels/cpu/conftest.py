"""These tests need the compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from corellm_kernels.cpu.build import compiler
from corellm_kernels.cpu.library import unavailable


@pytest.fixture(autouse=True)
def kernels() -> None:
    """Skip, with the reason, where the kernels cannot be built or are not wanted; elsewhere they must be there."""
    reason = unavailable()
    if reason is not None:
        assert compiler() is None or os.environ.get("CORELLM_CPU_KERNELS") == "off", reason
        pytest.skip(reason)


SetDtype = Callable[[torch.dtype], None]


@pytest.fixture
def default_dtype() -> Iterator[SetDtype]:
    """Set torch's default type for the rest of a test."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)

"""Without a GPU Triton interprets the kernels: much sooner where its language is put in place once.

The interpreter puts NumPy behind `triton.language` at each launch, and again for each function that a kernel calls, by
looking through all names there. Here it stays in place: these processes compile nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import triton


@pytest.fixture(scope="session", autouse=True)
def _language_stays() -> Iterator[None]:
    if not triton.knobs.runtime.interpret:
        yield
        return
    from triton.runtime import interpreter

    put = interpreter._patch_lang

    @cache
    def put_once(function: Callable[..., Any]) -> Any:
        scope = put(function)
        scope._changes.clear()  # nothing is left to take back
        return scope

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", put_once)
        yield

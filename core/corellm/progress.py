"""A progress bar over the requests of one call, with tokens per second.

Knows the engine's counters of tokens; the bar itself is tqdm's, or the caller's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine

_TITLE = "Prompts"
BAR_FORMAT = "{desc} |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
"""Leaves room for all of it on 80 columns: tqdm cuts off what does not fit, beginning with the rates."""


class Progress:
    """A context manager around the work; tqdm's bar stays hidden when the work takes less than a second.

    Args:
        engine: counts tokens.
        total: number of requests.
        wanted: whether to show a bar, or a function that makes it, called with `total=` and `desc=` like `tqdm`.
    """

    def __init__(self, engine: LLMEngine, total: int, wanted: bool | Callable[..., Any]) -> None:
        self._engine = engine
        self._start = (engine.num_prompt_tokens, engine.num_generated_tokens)
        self._began = time.monotonic()
        self._finished = 0
        self._bar: Any = None
        """None if none is wanted: tqdm takes a lock for a hidden bar, too, which an interrupt may leave locked."""
        if callable(wanted):
            self._bar = wanted(total=total, desc=_TITLE)
        elif wanted:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, delay=1.0, desc=_TITLE, dynamic_ncols=True, bar_format=BAR_FORMAT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self) -> None:
        """Count one finished request."""
        if self._bar is None:
            return
        self._finished += 1
        elapsed = max(time.monotonic() - self._began, 1e-6)
        prompt_rate = (self._engine.num_prompt_tokens - self._start[0]) / elapsed
        output_rate = (self._engine.num_generated_tokens - self._start[1]) / elapsed
        rates = f"{self._finished / elapsed:.3g}/s, tok/s: {output_rate:.0f} output, {prompt_rate:.0f} prompt"
        self._bar.set_postfix_str(rates, refresh=False)
        self._bar.update()

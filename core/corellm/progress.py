"""A progress bar over the requests of one call, with tokens per second.

Knows the engine's counters of tokens; what is shown is tqdm's, or the caller's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine


class Progress:
    """Shown from when it is entered until it is left; tqdm's is silent when work is done within a second.

    Args:
        engine: whose tokens are counted.
        total: number of requests.
        wanted: whether to show one, or what makes it, called as `tqdm` is with `total=` and `desc=`.
    """

    def __init__(self, engine: LLMEngine, total: int, wanted: bool | Callable[..., Any]) -> None:
        from tqdm.auto import tqdm

        self._engine = engine
        self._start = (engine.num_prompt_tokens, engine.num_generated_tokens)
        self._began = time.monotonic()
        if callable(wanted):
            self._bar = wanted(total=total, desc="Answering")
        else:
            self._bar = tqdm(
                total=total, disable=not wanted, delay=1.0, desc="Answering", unit="prompt", dynamic_ncols=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self) -> None:
        """Count one finished request."""
        elapsed = max(time.monotonic() - self._began, 1e-6)
        prompt_rate = (self._engine.num_prompt_tokens - self._start[0]) / elapsed
        output_rate = (self._engine.num_generated_tokens - self._start[1]) / elapsed
        self._bar.set_postfix_str(f"prompt {prompt_rate:.0f} tok/s, output {output_rate:.0f} tok/s", refresh=False)
        self._bar.update()

"""What corellm calls of this distribution. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.llm import LLM
    from corellm.serving import AsyncLLM
    from corellm_training.calls import AsyncTrainingCalls, TrainingCalls


class Training:
    """Sleep, and other weights."""

    @hookimpl
    def offer_calls(self, llm: LLM | AsyncLLM) -> TrainingCalls | AsyncTrainingCalls:
        """Return `sleep`, `wake_up`, `is_sleeping` and `update_weights`."""
        from corellm_training.calls import calls_of

        return calls_of(llm)

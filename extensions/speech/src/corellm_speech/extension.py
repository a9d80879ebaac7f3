"""What corellm calls of this distribution. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.llm import LLM
    from corellm.serving import AsyncLLM
    from corellm_speech.calls import SpeechCalls


class Speech:
    """Audio of any length to text."""

    @hookimpl
    def register_logits_processors(
        self, tokenizer: Any, vocab_size: int
    ) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """Return what holds outputs to the order of times."""

        def times(arguments: Mapping[str, Any]) -> Any:
            from corellm_speech.time_order import TimeOrder

            return TimeOrder.of(arguments, vocab_size)

        return {"speech-times": times}

    @hookimpl
    def offer_calls(self, llm: LLM | AsyncLLM) -> SpeechCalls | None:
        """Return `transcribe`, which is a method of `LLM` alone."""
        from corellm_speech.calls import calls_of

        return calls_of(llm)

"""What corellm calls of this distribution. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.llm import LLM
    from corellm.serving import AsyncLLM
    from corellm_decoding.beam_calls import AsyncBeamCalls, BeamCalls
    from corellm_decoding.processing import Processing


class Decoding:
    """Beam search, and functions that change logits."""

    @hookimpl
    def offer_logits_processing(self, tokenizer: Any, vocab_size: int) -> Processing:
        """Return what applies logits processors."""
        from corellm_decoding.processing import Processing

        return Processing.found(tokenizer, vocab_size)

    @hookimpl
    def offer_calls(self, llm: LLM | AsyncLLM) -> BeamCalls | AsyncBeamCalls:
        """Return `beam_search`."""
        from corellm_decoding.beam_calls import calls_of

        return calls_of(llm)

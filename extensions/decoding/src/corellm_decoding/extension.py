"""What corellm calls of this distribution. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.llm import LLM
    from corellm.serving import AsyncLLM
    from corellm_decoding.beam_calls import AsyncBeamCalls, BeamCalls


class Decoding:
    """Beam search."""

    @hookimpl
    def offer_calls(self, llm: LLM | AsyncLLM) -> BeamCalls | AsyncBeamCalls:
        """Return `beam_search`."""
        from corellm_decoding.beam_calls import calls_of

        return calls_of(llm)

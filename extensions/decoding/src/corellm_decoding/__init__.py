"""Other ways to decode: beam search, beside the engine, and functions that change logits, within its steps.

In reading order: `beam_params` is what a search is asked for, `beams` the search itself, `beam_calls` runs it.
"""

from __future__ import annotations

from corellm_decoding.beam_params import BeamSearchParams as BeamSearchParams

__all__ = ["BeamSearchParams"]

"""Other ways to decode: beam search, beside the engine, and functions that change logits, within its steps.

In reading order: `beam_params` is what a search is asked for, `beams` the search itself, `beam_calls` runs it;
`processors` says what changes logits and must keep to, `processing` applies it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corellm_decoding.beam_params import BeamSearchParams as BeamSearchParams
    from corellm_decoding.processors import BatchedLogitsProcessor as BatchedLogitsProcessor
    from corellm_decoding.processors import SequenceTokens as SequenceTokens

_HOMES = {
    "BatchedLogitsProcessor": "corellm_decoding.processors",
    "BeamSearchParams": "corellm_decoding.beam_params",
    "SequenceTokens": "corellm_decoding.processors",
}
__all__ = ["BatchedLogitsProcessor", "BeamSearchParams", "SequenceTokens"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: torch is loaded with processors alone."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

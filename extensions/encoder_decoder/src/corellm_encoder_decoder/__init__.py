"""Encoder-decoders for corellm, and decoders that attend to items beside their prompt.

In reading order: `defaults` says what an adapter need not, and finds which of both a model is; `attended` is what the
core asks of it; `hook_results` checks what adapters state of a prompt.

When a model is loaded: `probe` finds what its decoder asks of attention.

In scheduling: `encoder_prompt` is a request's part and the blocks of its states, `item_prompt` those of items.

In a step: `encoder_states` runs encoders, `item_states` has the states of items; `cross_attention_cache` is what the
decoder gets, `cross_attention` how its layers attend, `captured_states` what captured steps read.
"""

from __future__ import annotations

__version__ = "0.2.0"

"""Encoder-only text models (such as BERT): every token sees all others, so there is no KV cache and no chunk.

`recognition` says which models these are, `forward` runs whole prompts through them in one of two ways, `choice` finds
which, `heads` takes the classes' own heads, `runner` is their worker. Knows transformers' code; knows no model family.
"""

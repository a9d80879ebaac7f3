"""Decoders with layers that keep a state: gated delta rule, short convolutions, Mamba. One state slot per sequence.

`finding` says which modules of a decoder do, and is all that is asked of others; `mixer` runs one of them on given
states, `checking` compares that with its whole prompt at load, `rows` says whose state lies where, `states` holds the
tensors and splits a step by sequences. Knows transformers' Cache interface; knows no model family.
"""

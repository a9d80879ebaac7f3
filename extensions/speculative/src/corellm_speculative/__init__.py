"""Drafts for corellm: guesses of the next tokens, which change when an output comes and nothing else.

In reading order: `settings` reads `speculative_config`, `text` finds where a text went on before, `outputs` keeps texts
of earlier requests, `guessing` guesses for one sequence, `acceptance` and `costs` measure whether that pays, `drafting`
is the part of a step.
"""

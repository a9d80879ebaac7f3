"""Drafts for corellm: guesses of the next tokens, which change when an output comes and nothing else.

In reading order: `settings` reads `speculative_config`; `acceptance` and `costs` measure whether drafts pay; `drafting`
is the part of a step.

From text: `text` finds where it went on before, `outputs` keeps texts of earlier requests, `guessing` guesses for one
sequence, `lookup` for all.

By a model: `draft_checkpoint` and `draft_loading` load it, if its tokens are the model's (`vocabulary`); `draft_model`
is its forward pass and its blocks, `draft_states` the states of its layers, `draft_sequence` what it knows of a
sequence, `depths` says how far to draft, `model_drafting` drafts.

By a head on the model's hidden states: `head_checkpoint` and `head_loading` load it, `head_module` has its layers,
`hidden_states` notes what it reads; `head_model`, `head_sequence` and `head_drafting` are what those of a model are.
"""

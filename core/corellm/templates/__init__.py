"""Jinja templates of checkpoints and operators, rendered where they can be killed.

`environment` is what transformers gives a chat template, `worker` the child process that renders, `renderer` how the
engine asks it. Only the child imports Jinja2.
"""

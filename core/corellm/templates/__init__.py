"""Renders Jinja chat templates of checkpoints and operators in child processes that can be killed.

`environment` defines what templates can use, `worker` is the child process that renders, `renderer` the engine's side.
Only the child imports Jinja2.
"""

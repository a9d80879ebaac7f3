"""Measures any OpenAI-compatible server under load: requests at random times, and what clients wait for.

In reading order: `settings`; `workload` makes requests and their times, `client` sends one and notes in its `result`
when its output comes, `load` sends all; `report` computes, `plot` draws. Knows no engine and no model.
"""

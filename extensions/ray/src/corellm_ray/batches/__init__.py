"""Batches on Ray Data: the requests of a file by workers of a cluster, and prompts in people's own pipelines.

`offer` is the door and the options, `table` reads Parquet and CSV as requests, `done` knows what has results, `command`
is the one process that writes them, `worker` has an engine. `pipeline` is for datasets of people's own.
"""

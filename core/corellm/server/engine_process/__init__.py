"""The engine in a process of its own: `client.ProcessLLM` in the API process, `engine_main` in the engine's.

A crash of either ends the other. Both speak `messages` over a `channel` that only they have; tensors go along in shared
memory (`tensors`). Nothing that is received is unpickled or evaluated.
"""

"""The engine: one step after another, for callers of any thread, in this process or another. In reading order:

    llm_engine          takes requests, runs one step at a time; `atomic` undoes interrupted calls
    client              what a caller sees of an engine, here or in another process (`process`)
    async_llm           the engine for asyncio, in a thread of its own; a `stream` per request
    maintenance         caches, `metrics` and traces between steps; `at_exit` stops engines when the interpreter exits

Rooms that it uses: `frontend` (prompts and outputs), `scheduling` (what a step computes), `worker` (a step's tensors)
and `loading` (how an engine's parts come to be).
"""

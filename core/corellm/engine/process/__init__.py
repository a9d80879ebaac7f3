"""The engine in a process of its own. A crash of the API process or of the engine's ends the other.

Both speak over a channel that only they have. Nothing that is received is unpickled or evaluated. In reading order:

    client          `ProcessLLM`, in the API process, by a `remote_engine`, which starts the `process`
    front_end       prepares prompts in the API process
    engine_main     the engine's process
    messages        what they tell each other, with `faults`; over a `channel`
    requests        a prepared request as one of them
    tensors         an item's tensors, in shared memory
    codec           parameters and outputs of requests as messages, and what joins deltas again
"""

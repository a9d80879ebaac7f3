"""The program that `other_process` starts: does the tasks on standard input, until it ends."""

from __future__ import annotations

import os
import pickle
import sys
import traceback

from corellm.llm import LLM


def main() -> None:
    """Write the result of each task, pickled, or the traceback of what it raised."""
    tasks, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what adapters print is no result
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        try:
            result: bytes | str = _process(task)
        except Exception:
            result = traceback.format_exc()
        pickle.dump(result, results)
        results.flush()


def _process(task: bytes) -> bytes:
    """Return the requests of a task processed, and its echo."""
    import torch

    checkpoint, num_threads, requests, echo = pickle.loads(task)
    torch.set_num_threads(num_threads)
    with LLM(checkpoint, dtype="float32") as llm:
        process = llm.engine.input_processor.process
        processed = [process({"prompt": text, "multi_modal_data": media}) for text, media in requests]
    return pickle.dumps((processed, echo))


if __name__ == "__main__":
    main()

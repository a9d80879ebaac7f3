"""The other process of the rule `test_another_process_agrees`: reads pickled requests from standard input.

Writes the requests processed here, and the parent's own processed requests unchanged.
"""

from __future__ import annotations

import pickle
import sys

from corellm.llm import LLM


def main() -> None:
    """Process the requests on standard input."""
    checkpoint, num_threads, requests, echo = pickle.load(sys.stdin.buffer)
    import torch

    torch.set_num_threads(num_threads)
    with LLM(checkpoint, dtype="float32") as llm:
        processed = [
            llm.engine.input_processor.process({"prompt": text, "multi_modal_data": media}) for text, media in requests
        ]
    pickle.dump((processed, echo), sys.stdout.buffer)


if __name__ == "__main__":
    main()

"""Requests that are all there before the first step, so that batches and preemptions are the same each time.

`LLM.generate` prepares prompts beside the steps of earlier ones: how requests overlap there depends on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corellm.llm import LLM, OnError
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams


def generate_together(
    llm: LLM, prompts: Sequence[Any], params: Sequence[SamplingParams], on_error: OnError = "raise"
) -> list[RequestOutput]:
    """Return the output of each prompt with its parameters; `on_error` is that of `LLM.generate`.

    Raises:
        CorellmError: the first failed prompt's error.
    """
    for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        llm.engine.add_request(str(number), prompt, one, stream=False)
    found = {o.request_id: o for _ in iter(llm.engine.has_unfinished_requests, False) for o in llm.engine.step()}
    return llm.run_ended([found[str(number)] for number in range(len(prompts))], on_error)

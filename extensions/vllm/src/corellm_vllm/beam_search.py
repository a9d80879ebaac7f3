"""What `LLM.beam_search` returns, by the names of vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corellm.outputs import PositionLogprobs, RequestOutput
from corellm_vllm.absent.exports import exports


@dataclass
class BeamSearchSequence:
    """One of the most likely outputs of a prompt."""

    tokens: list[int]
    """Token ids of the prompt and of the output."""
    logprobs: list[PositionLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    """Text of all tokens, special ones included."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """The most likely outputs of a prompt, the best one first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


def output_of(output: RequestOutput, tokenizer: Any) -> BeamSearchOutput:
    """Return what a search found."""
    sequences = []
    for one in output.outputs:
        tokens = [*output.prompt_token_ids, *one.token_ids]
        text = str(tokenizer.decode(tokens))
        sequences.append(
            BeamSearchSequence(tokens, one.logprobs or [], one.cumulative_logprob or 0.0, text, one.finish_reason)
        )
    return BeamSearchOutput(sequences)


__all__ = ["BeamSearchOutput", "BeamSearchSequence"]
__getattr__ = exports(__name__)

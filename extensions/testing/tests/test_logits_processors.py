"""The check of logits processors passes right ones, and finds each way to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from corellm_decoding import BatchedLogitsProcessor, SequenceTokens
from corellm_testing import ContractBroken, check_logits_processor

VOCAB = 50


class Batched(BatchedLogitsProcessor):
    """Forbids the last token again."""

    def __call__(self, logits: torch.Tensor, sequences: Sequence[SequenceTokens]) -> torch.Tensor:
        for row, one in zip(logits, sequences, strict=True):
            row[list(one.output_token_ids[-1:])] = -torch.inf
        return logits


def of_outputs(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits.index_fill(0, torch.tensor(output, dtype=torch.int64), -3.0)


def of_prompts(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[prompt[0]] += len(output)
    return logits


@pytest.mark.parametrize("right", [of_outputs, of_prompts, Batched(), RepetitionPenaltyLogitsProcessor(1.3)])
def test_right_ones_pass(right: Any) -> None:
    """Of each kind."""
    check_logits_processor(right, vocab_size=VOCAB)


class Mixing(BatchedLogitsProcessor):
    def __call__(self, logits: torch.Tensor, sequences: Sequence[SequenceTokens]) -> torch.Tensor:
        return logits - logits[:, :1].mean()


class Shifted(BatchedLogitsProcessor):
    def __call__(self, logits: torch.Tensor, sequences: Sequence[SequenceTokens]) -> torch.Tensor:
        logits[0] += 1
        return logits


def counting() -> Callable[..., Any]:
    calls: list[int] = []

    def count(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return logits + len(calls)

    return count


class Writing(BatchedLogitsProcessor):
    def __call__(self, logits: torch.Tensor, sequences: Sequence[SequenceTokens]) -> torch.Tensor:
        for one in sequences:
            one.output_token_ids.append(3)  # type: ignore[attr-defined]
        return logits


WRONG: dict[str, Any] = {
    "alone as in a batch": Mixing(),
    "the place in a batch": Shifted(),
    "alone as in a batch, counted": counting(),
    "token ids": Writing(),
    "must return a tensor, not NoneType": lambda output, logits: None,
    "must return logits": lambda output, logits: logits[:-1],
    "floating": lambda output, logits: logits.long(),
    "NaN or infinity": lambda output, logits: logits * torch.nan,
    "gives NaN or infinity": lambda output, logits: logits.index_fill(0, torch.tensor([4]), torch.inf),
    "leaves no token": lambda output, logits: logits - torch.inf,
    "no error": lambda output, logits: 1 / 0,
}


@pytest.mark.parametrize("told", WRONG)
def test_wrong_ones_are_found(told: str) -> None:
    """By the rule that they break."""
    with pytest.raises(ContractBroken) as caught:
        check_logits_processor(WRONG[told], vocab_size=VOCAB)
    said = "alone as in a batch" if told in ("the place in a batch", "alone as in a batch, counted") else told
    assert said in str(caught.value)

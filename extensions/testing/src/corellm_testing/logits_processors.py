"""Whether a logits processor keeps to its contract, for authors of processors; with `corellm-decoding`.

    from corellm_testing import check_logits_processor

    def test_mine():
        check_logits_processor(my_processor, vocab_size=1000)

Knows the contract of `corellm_decoding.processors`, whose own checks run here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corellm_testing.rules import ContractBroken

if TYPE_CHECKING:
    from torch import Tensor

_SEQUENCES = ((1, 0), (5, 3), (9, 8), (2, 1), (30, 17), (5, 3))
"""Lengths of prompt and output."""


def check_logits_processor(processor: Any, *, vocab_size: int, seed: int = 0) -> None:
    """Check a processor with random logits and tokens, or raise what it breaks.

    Args:
        processor: of any kind that `SamplingParams.logits_processors` takes, or what a registered one's maker returns.
        vocab_size: width of the logits.
        seed: of the random numbers.

    Raises:
        ContractBroken: the rule, and what came instead.
    """
    _Trial(processor, vocab_size, seed).run()


class _Trial:
    """Calls a processor with the same rows in several ways."""

    def __init__(self, processor: Any, vocab_size: int, seed: int) -> None:
        import torch

        from corellm_decoding.processors import Processor, SequenceTokens

        generator = torch.Generator().manual_seed(seed)
        self._processor = Processor(processor)
        self._logits = 5 * torch.randn(len(_SEQUENCES), vocab_size, generator=generator)
        self._logits[1, vocab_size // 2 :: 3] = -torch.inf  # as an earlier processor may leave it
        drawn = [torch.randint(vocab_size, (2, 32), generator=generator).tolist() for _ in _SEQUENCES]
        self._sequences = [
            SequenceTokens(prompt[:num_prompt], output[:num_output])
            for (prompt, output), (num_prompt, num_output) in zip(drawn, _SEQUENCES, strict=True)
        ]

    def run(self) -> None:
        """Check rule by rule."""
        every = range(len(_SEQUENCES))
        before = [(list(one.prompt_token_ids), list(one.output_token_ids)) for one in self._sequences]
        together = self._called("the result is logits", list(every))
        if before != [(list(one.prompt_token_ids), list(one.output_token_ids)) for one in self._sequences]:
            raise self._broken("token ids are not changed", "the lists as they were", "other tokens in them")
        for row in reversed(every):
            self._compare("a row is the same alone as in a batch", [row], together)
        self._compare("the place in a batch does not matter", list(reversed(every)), together)
        self._compare("a row does not depend on the others of its batch", [4, 0], together)
        self._compare("it depends on no earlier call: a sequence may be computed again", list(every), together)

    def _compare(self, rule: str, rows: Sequence[int], together: Tensor) -> None:
        found = self._called(rule, rows)
        for row, one in zip(rows, found, strict=True):
            if not bool((one == together[row]).all()):
                token = int((one != together[row]).nonzero()[0])
                expected = f"token {token} of row {row}: {together[row, token].item()}"
                raise self._broken(rule, expected, f"{one[token].item()}")

    def _called(self, rule: str, rows: Sequence[int]) -> Tensor:
        try:
            return self._processor(self._logits[list(rows)], [self._sequences[row] for row in rows])
        except Exception as error:
            raise self._broken(rule, "no error", f"{type(error).__name__}: {error}") from error

    def _broken(self, rule: str, expected: str, got: str) -> ContractBroken:
        return ContractBroken(
            self._processor.name, rule, expected=expected, got=got,
            fix="make the result of the arguments alone: of each row's own logits and tokens, and of nothing kept",
        )  # fmt: skip

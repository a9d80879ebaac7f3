"""Sequences in steady decode: all past their prompts, one token each a step."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from bench.gpu.prompts import token_requests


class SteadyDecode:
    """A batch of sequences that go on until this context is left.

    The engine may hand steps to the device ahead of their results, so steps are counted by the tokens that came.

    Args:
        engine: ours, idle.
        batch: sequences.
        context: tokens of each prompt, none of them cached before.
        vocab: token ids are below.
        longest: tokens each may generate at most.
    """

    def __init__(self, engine: Any, batch: int, context: int, vocab: int, longest: int) -> None:
        self.engine, self.batch, self.context = engine, batch, context
        self._vocab, self._longest = vocab, longest
        self._ids: list[str] = []
        self._before = 0

    def __enter__(self) -> Self:
        from corellm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=self._longest, ignore_eos=True)
        seed = time.monotonic_ns() % 2**32
        prompts = token_requests(self.batch, seed, shortest=self.context, longest=self.context, vocab=self._vocab)
        self._before = self.engine.num_generated_tokens
        self._ids = [f"steady-{seed}-{i}" for i in range(self.batch)]
        for request_id, ids in zip(self._ids, prompts, strict=True):
            self.engine.add_request(request_id, {"prompt_token_ids": ids}, params, stream=False)
        in_a_row = 0
        while in_a_row < 3:  # the first full step may have prompts in it, and the second may be the first one recorded
            before = self.engine.num_generated_tokens
            self.engine.step()
            in_a_row = in_a_row + 1 if self.engine.num_generated_tokens - before == self.batch else 0
            if not self.engine.has_unfinished_requests():
                raise RuntimeError(f"{self.batch} sequences never decoded together; does the KV cache hold them?")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for request_id in self._ids:
            self.engine.abort_request(request_id, silently=True)

    @property
    def mean_context(self) -> float:
        """Tokens of a sequence by now."""
        return self.context + float(self.engine.num_generated_tokens - self._before) / self.batch

    def seconds_per_step(self, steps: int) -> float:
        """Of a token for each sequence: the median of four stretches."""
        stretches: list[float] = []
        for _ in range(4):
            before, start = self.engine.num_generated_tokens, time.perf_counter()
            for _ in range(max(1, steps // 4)):
                self.engine.step()
            tokens = self.engine.num_generated_tokens - before
            stretches.append((time.perf_counter() - start) * self.batch / tokens)
        return sorted(stretches)[len(stretches) // 2]

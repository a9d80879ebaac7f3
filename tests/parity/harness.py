"""The parity matrix: greedy tokens equal an oracle's, whatever the engine does to save time or memory.

An architecture's test file subclasses `ParityMatrix` and says how its checkpoint is made, which requests are asked, and
what the oracle answers (usually `generate` of transformers, one request at a time). Random weights are spread wide
enough that a misplaced row shows; every request's continuation differs from the others'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from corellm import LLM, RequestOutput, SamplingParams

QUESTIONS = [
    "What shape is in the picture?",
    "How many objects are there?",
    "Describe the image. The quick brown fox jumps over the lazy dog. " * 2,
    "yes or no?",
    "left, right, above or below?",
    "0123456789 " * 5,
]


@dataclass
class Case:
    """One request."""

    prompt: str
    media: Mapping[str, Sequence[Any]]
    """`{modality: items}`, as `multi_modal_data` takes them."""
    max_tokens: int
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def engine_prompt(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "multi_modal_data": dict(self.media),
            "mm_processor_kwargs": dict(self.processor_kwargs),
        }

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=0, max_tokens=self.max_tokens, min_tokens=self.max_tokens, logprobs=0)


@dataclass
class Expected:
    """What the oracle gives for a case."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]


@dataclass
class Oracle:
    """A checkpoint, requests, and what they must give."""

    checkpoint: Path
    cases: list[Case]
    expected: list[Expected]


def generate_one(model: Any, inputs: Mapping[str, Any], max_tokens: int) -> Expected:
    """Transformers' greedy continuation of one request.

    Args:
        model: a transformers model with a `generate`.
        inputs: what its processor gives for text and media together, `input_ids` among it.
        max_tokens: exactly so many are generated.
    """
    output = model.generate(
        **inputs, max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    prompt = inputs["input_ids"][0].tolist()
    tokens = output.sequences[0, -max_tokens:].tolist()
    logprobs = [
        torch.log_softmax(step[0].float(), -1)[token].item() for step, token in zip(output.logits, tokens, strict=True)
    ]
    return Expected(prompt, tokens, logprobs)


def check(oracle: Oracle, **engine_args: Any) -> tuple[LLM, list[RequestOutput]]:
    """Run all requests together and compare each with the oracle."""
    cases = oracle.cases
    with LLM(str(oracle.checkpoint), dtype="float32", **engine_args) as llm:
        outputs = llm.generate([c.engine_prompt for c in cases], [c.params for c in cases], use_tqdm=False)
        for i, (output, want) in enumerate(zip(outputs, oracle.expected, strict=True)):
            assert output.prompt_token_ids == want.prompt_token_ids, f"request {i}: prompt"
            completion = output.outputs[0]
            assert completion.token_ids == want.token_ids, f"request {i}: tokens"
            assert completion.logprobs is not None
            got = [p[t].logprob for p, t in zip(completion.logprobs, completion.token_ids, strict=True)]
            assert got == pytest.approx(want.logprobs, abs=1e-4), f"request {i}: log-probabilities"
        manager = llm.engine.scheduler.blocks
        manager.check_integrity()
        assert manager.num_free_blocks == manager.capacity, "every block is free at the end"
    return llm, outputs


def largest_item_bytes(oracle: Oracle) -> int:
    """Bytes of the largest processed item of any case."""
    with LLM(str(oracle.checkpoint), dtype="float32") as llm:
        process = llm.engine.input_processor.process
        return max(feature.data.nbytes for case in oracle.cases for feature in process(case.engine_prompt).features)


class ParityMatrix:
    """Everything the engine may do differently, for one architecture.

    A subclass implements `make_checkpoint`, `make_cases` and `answer`, all class methods.
    """

    tight_tokens: ClassVar[int] = 192
    """KV slots in the tests that preempt: at least the longest request with its answer, much less than all together."""
    max_model_len: ClassVar[int] = 320
    """For whole prompts first: at least the longest request with its answer."""

    @classmethod
    def make_checkpoint(cls, path: Path) -> Path:
        """Write a tiny checkpoint into `path`."""
        raise NotImplementedError

    @classmethod
    def make_cases(cls) -> list[Case]:
        """At least a dozen requests: text only, one item, several, shared prefixes, different lengths."""
        raise NotImplementedError

    @classmethod
    def answer(cls, checkpoint: Path, cases: list[Case]) -> list[Expected]:
        """The oracle, one request at a time."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def oracle(cls, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
        """Checkpoint, requests and answers, once per class."""
        checkpoint = cls.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))
        cases = cls.make_cases()
        return Oracle(checkpoint, cases, cls.answer(checkpoint, cases))

    def test_the_oracle_can_tell_requests_apart(self, oracle: Oracle) -> None:
        """Random weights that answer every request alike would prove nothing."""
        count = len(oracle.cases)
        assert count >= 12
        assert len({tuple(e.token_ids[:5]) for e in oracle.expected}) > 0.8 * count
        assert sum(len(set(e.token_ids)) > len(e.token_ids) // 3 for e in oracle.expected) >= 0.75 * count

    @pytest.mark.parametrize("chunk", [16, 64, 8192])
    @pytest.mark.parametrize("prefix_caching", [True, False])
    def test_chunks_and_prefix_caching(self, oracle: Oracle, chunk: int, prefix_caching: bool) -> None:
        """Any chunk size gives the same tokens, with and without prefix caching."""
        _, outputs = check(oracle, max_num_batched_tokens=chunk, enable_prefix_caching=prefix_caching)
        cached = sum(output.num_cached_tokens for output in outputs)
        assert (cached > 0) == prefix_caching

    @pytest.mark.parametrize(("block_size", "mode"), [(8, "recompute"), (16, "swap"), (16, "recompute"), (32, "swap")])
    def test_preemption(self, oracle: Oracle, block_size: int, mode: str) -> None:
        """So few blocks that requests are preempted, by recompute and by swap, in blocks of any size."""
        _, outputs = check(
            oracle, num_kv_blocks=self.tight_tokens // block_size, max_model_len=self.tight_tokens - block_size,
            block_size=block_size, preemption_mode=mode, max_num_batched_tokens=64,
        )  # fmt: skip
        assert sum(output.metrics.num_preemptions for output in outputs if output.metrics) > 0

    @pytest.mark.parametrize("chunk", [16, 8192])
    def test_caches_of_one_item(self, oracle: Oracle, chunk: int) -> None:
        """An encoder cache and a processor cache that hold a single item (the largest)."""
        nbytes = largest_item_bytes(oracle)
        llm, _ = check(oracle, encoder_cache_size=0, mm_processor_cache_gb=nbytes / 2**30, max_num_batched_tokens=chunk)
        processor = llm.engine.input_processor.mm_processor
        assert llm.engine.scheduler.encoder_cache.capacity_embeds == max(processor.profile.max_embeds.values())
        assert processor.cache.nbytes <= nbytes

    @pytest.mark.parametrize("delay", [0.0, 0.5])
    def test_whole_prompts(self, oracle: Oracle, delay: float) -> None:
        """Without chunked prefill: whole prompts first, with blocks short and with a delay factor."""
        check(
            oracle, enable_chunked_prefill=False, scheduler_delay_factor=delay, max_model_len=self.max_model_len,
            num_kv_blocks=self.max_model_len // 16 + 1,
        )  # fmt: skip

    @pytest.mark.parametrize("backend", ["reference", "cpu"])
    def test_attention_backends(self, oracle: Oracle, backend: str) -> None:
        """Every backend that runs here."""
        check(oracle, attention_backend=backend)

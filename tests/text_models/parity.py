"""What text-only models are compared by: prompts, lengths of outputs, and what transformers generates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm_testing.reference import Continuation, generate_one
from corellm_testing.together import generate_together

_BEGINNING = "Look with care, one two three four five six seven eight nine ten. "
PROMPTS = [
    "yes",
    "What shape is in the picture?",
    _BEGINNING + "How many objects are there?",
    _BEGINNING * 2 + "left, right, above or below?",
    _BEGINNING * 3,
]
LENGTHS = [18, 16, 9, 12, 14]


@dataclass(frozen=True)
class Model:
    """A tiny checkpoint, and what transformers generates with it."""

    path: Path
    wanted: list[Continuation]

    def engine(self, **options: Any) -> LLM:
        """The model loaded."""
        return LLM(str(self.path), dtype="float32", max_model_len=120, **options)

    def require_equal(self, llm: LLM) -> list[Any]:
        """Generate all prompts together, and compare."""
        params = [SamplingParams(temperature=0, max_tokens=n, min_tokens=n, logprobs=0) for n in LENGTHS]
        outputs = generate_together(llm, PROMPTS, params)
        for output, want in zip(outputs, self.wanted, strict=True):
            (completion,) = output.outputs
            assert completion.logprobs is not None
            assert output.prompt_token_ids == want.prompt_token_ids
            assert completion.token_ids == want.token_ids
            logprobs = [step[t].logprob for step, t in zip(completion.logprobs, completion.token_ids, strict=True)]
            assert logprobs == pytest.approx(want.logprobs, abs=1e-4)
        return outputs


def generated(architecture: str, path: Path, *, with_sinks: bool = True) -> list[Continuation]:
    """What transformers generates, one prompt at a time; only its eager attention caps scores and adds sinks."""
    cls = getattr(transformers, architecture)
    reference = cls.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    for name, parameter in reference.named_parameters():
        if name.endswith(".sinks") and not with_sinks:
            parameter.requires_grad_(False).fill_(-1e4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    return [
        generate_one(reference, tokenizer(prompt, return_tensors="pt"), length)
        for prompt, length in zip(PROMPTS, LENGTHS, strict=True)
    ]

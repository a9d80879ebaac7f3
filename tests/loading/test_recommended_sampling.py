"""`generation_config.json`: its parameters apply where a request has none; when outputs end.

The oracle is transformers' own reading of the file, and its `generate` without arguments.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, AsyncLLM, SamplingParams
from corellm.errors import CheckpointError, ConfigError
from corellm.loading.recommended_sampling import recommended_sampling

PROMPT = "USER: hello there ASSISTANT:"


@pytest.fixture
def checkpoint(tiny_llava: Path, tmp_path: Path) -> Path:
    """A copy of the tiny LLaVA."""
    return Path(shutil.copytree(tiny_llava, tmp_path / "checkpoint"))


def state(checkpoint: Path, **stated: Any) -> Path:
    """Write the file."""
    file = checkpoint / "generation_config.json"
    file.write_text(json.dumps(stated))
    return file


@pytest.mark.parametrize(
    "stated",
    [
        {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
        {"do_sample": True, "temperature": 0.1, "min_p": 0.1, "max_new_tokens": 5, "top_k": 0},
        {"temperature": None, "top_p": 0.5},
    ],
)
def test_what_is_stated_is_what_transformers_reads(tmp_path: Path, stated: dict[str, Any]) -> None:
    """Each value that the file states; the rest is as without a file."""
    state(tmp_path, **stated)
    ours, theirs = recommended_sampling(tmp_path), transformers.GenerationConfig.from_pretrained(tmp_path)
    plain = SamplingParams()
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        want = getattr(plain, name) if stated.get(name) is None else getattr(theirs, name)
        assert getattr(ours, name) == want, name
    assert ours.max_tokens == (theirs.max_new_tokens or plain.max_tokens)


def test_absent_files_and_greedy_ones(tmp_path: Path) -> None:
    """No file recommends nothing; `do_sample: false` is greedy whatever temperature stands beside it."""
    assert recommended_sampling(tmp_path) == SamplingParams()
    state(tmp_path, do_sample=False, temperature=0.6)
    assert recommended_sampling(tmp_path).greedy


def test_a_recommendation_that_cannot_be(checkpoint: Path) -> None:
    """File, field, value, and how to do without; then it loads."""
    state(checkpoint, top_p=1.5)
    with pytest.raises(CheckpointError, match=r"generation_config\.json: top_p .* got 1\.5.*'none'"):
        LLM(str(checkpoint))
    with LLM(str(checkpoint), generation_config="none") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


def test_requests_without_parameters_take_the_recommendation(checkpoint: Path) -> None:
    """`LLM` and `AsyncLLM` generate the same as transformers' `generate` without arguments.

    Parameters given are all that counts; `generation_config="none"` turns the recommendation off.
    """
    state(checkpoint, do_sample=False, max_new_tokens=7, repetition_penalty=1.3, eos_token_id=2)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    prompt = transformers.AutoTokenizer.from_pretrained(checkpoint)(PROMPT, return_tensors="pt")
    with torch.no_grad():
        want = model.generate(**prompt)[0, prompt["input_ids"].shape[1] :].tolist()

    def tokens(llm: LLM, *given: Any) -> list[int]:
        return list(llm.generate(PROMPT, *given, use_tqdm=False)[0].outputs[0].token_ids)

    with LLM(str(checkpoint), dtype="float32") as llm:
        recommended = llm.get_default_sampling_params()
        assert (recommended.temperature, recommended.max_tokens, recommended.repetition_penalty) == (0, 7, 1.3)
        assert tokens(llm) == tokens(llm, recommended) == want
        (output,) = llm.chat([{"role": "user", "content": "hi"}], use_tqdm=False)
        assert len(output.outputs[0].token_ids) <= 7
        plain = SamplingParams(temperature=0, max_tokens=7)
        assert tokens(llm, plain) != want

    async def stream() -> list[int]:
        async with AsyncLLM(str(checkpoint), dtype="float32") as serving:
            assert serving.get_default_sampling_params() == recommended
            async for output in serving.generate(PROMPT):
                last = output
        return list(last.outputs[0].token_ids)

    assert asyncio.run(stream()) == want
    with LLM(str(checkpoint), dtype="float32", generation_config="none") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
        assert llm.generate(PROMPT, use_tqdm=False)[0].outputs[0].token_ids != want


@pytest.mark.parametrize("stated", [7, [7, 9], None])
def test_answers_end_at_the_files_and_the_tokenizers_end(checkpoint: Path, stated: Any) -> None:
    """Tokens of `eos_token_id` and the tokenizer's end of sequence end an output, and no other."""
    state(checkpoint, eos_token_id=stated)
    with LLM(str(checkpoint)) as llm:
        ends = {llm.get_tokenizer().eos_token_id, *([stated] if isinstance(stated, int) else stated or ())}
        for token in (2, 7, 9, 11):
            only = SamplingParams(temperature=0, max_tokens=3, allowed_token_ids=[token])
            (output,) = llm.generate(PROMPT, only, use_tqdm=False)
            assert output.outputs[0].finish_reason == ("stop" if token in ends else "length"), token


def test_choices(checkpoint: Path) -> None:
    """Another word is refused; the field's own word for none is understood."""
    with pytest.raises(ConfigError, match=r"generation_config .*'some/folder'"):
        LLM(str(checkpoint), generation_config="some/folder")
    state(checkpoint, top_k=3)
    with LLM(str(checkpoint), generation_config="vllm") as llm:
        assert llm.get_default_sampling_params().top_k == 0

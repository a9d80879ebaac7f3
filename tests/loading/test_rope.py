"""Rotary frequencies are those of the longest sequence, whatever is in the batch: those of transformers' forward."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding

from corellm import LLM, SamplingParams
from corellm.errors import ConfigError
from corellm.loading.rope import freeze_rope

TRAINED, LONGEST = 64, 256
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0],
    "original_max_position_embeddings": TRAINED,
    "factor": LONGEST / TRAINED,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": LONGEST / TRAINED}
KINDS = {"longrope": (LONGROPE, LONGEST), "dynamic": (DYNAMIC, TRAINED)}
"""Rope parameters and `max_position_embeddings`."""


@pytest.fixture(params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path, make_llava: Callable[..., Path]) -> Path:
    """A tiny LLaVA whose text model stretches its positions from 64 to 256."""
    path = shutil.copytree(make_llava(), tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    rope, positions = KINDS[request.param]
    config["text_config"] |= {"rope_parameters": rope, "max_position_embeddings": positions}
    (path / "config.json").write_text(json.dumps(config))
    return path


def load(path: Path, **options: Any) -> LLM:
    return LLM(str(path), dtype="float32", **{"max_model_len": LONGEST, "num_kv_blocks": 64} | options)


def token_ids(count: int, seed: int) -> list[int]:
    return torch.randint(5, 200, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logprobs_of(llm: LLM, *prompts: list[int]) -> list[list[float]]:
    """Log-probabilities of each prompt's tokens but the first, and of three more."""
    params = SamplingParams(temperature=0, max_tokens=3, min_tokens=3, logprobs=0, prompt_logprobs=0)
    found = []
    for output in llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False):
        positions = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
        found.append([next(iter(position.values())).logprob for position in positions])
    return found


def test_neighbours_chunks_and_cached_prefixes_change_nothing(checkpoint: Path) -> None:
    """A short and a long request, each alone, give the same together, in chunks, and after one another's prefix."""
    long = token_ids(200, seed=0)
    short = long[:40]
    alone = []
    for prompt in (short, long):
        with load(checkpoint, enable_prefix_caching=False) as llm:
            alone += logprobs_of(llm, prompt)
    with load(checkpoint, enable_prefix_caching=False) as llm:
        assert logprobs_of(llm, short, long) == [pytest.approx(each, abs=1e-4) for each in alone]
    with load(checkpoint, enable_prefix_caching=False, max_num_batched_tokens=24) as llm:
        assert logprobs_of(llm, short, long) == [pytest.approx(each, abs=1e-4) for each in alone]
    with load(checkpoint) as llm:
        for prompt, expected in zip((short, long), alone, strict=True):
            params = SamplingParams(temperature=0, max_tokens=3, min_tokens=3, logprobs=0)
            (output,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
            found = [next(iter(position.values())).logprob for position in output.outputs[0].logprobs or []]
            assert found == pytest.approx(expected[-3:], abs=1e-4)
        assert output.num_cached_tokens


@pytest.mark.parametrize("max_model_len", [TRAINED, 100, LONGEST])
def test_transformers_on_the_longest_prompt(checkpoint: Path, max_model_len: int) -> None:
    """Any prompt gets the log-probabilities of the beginning of a prompt that is `max_model_len` long."""
    ids = token_ids(max_model_len, seed=1)
    reference = transformers.LlavaForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.inference_mode():
        every = reference(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = every[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    with load(checkpoint, max_model_len=max_model_len) as llm:
        for count in (20, max_model_len - 3):
            (found,) = logprobs_of(llm, ids[:count])
            assert found[: count - 1] == pytest.approx(expected[: count - 1], abs=1e-4)


def test_longer_than_the_frequencies_are_made_for(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=f"max_model_len={LONGEST + 1} .* {LONGEST} "):
        load(checkpoint, max_model_len=LONGEST + 1)


def rotary(kind: str) -> tuple[Any, list[dict[str, str]]]:
    """A rotary module of another make, and the arguments of its forward."""
    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    if kind == "layer types":
        parameters = {"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
        gemma = transformers.Gemma3TextConfig(
            **sizes, head_dim=16, max_position_embeddings=LONGEST, rope_parameters=parameters, num_hidden_layers=6
        )
        return Gemma3RotaryEmbedding(gemma), [{"layer_type": name} for name in parameters]
    qwen = transformers.Qwen2VLTextConfig(
        **sizes, max_position_embeddings=TRAINED, rope_parameters=DYNAMIC | {"mrope_section": [2, 3, 3]}
    )
    return Qwen2VLRotaryEmbedding(qwen), [{}]


@pytest.mark.parametrize("kind", ["layer types", "three rows"])
def test_other_rotary_modules(kind: str) -> None:
    """With frequencies for each type of layer, and with positions in time, height and width."""
    frozen, calls = rotary(kind)
    freeze_rope(frozen, LONGEST)
    rows = 3 if kind == "three rows" else 1
    positions = torch.arange(LONGEST).expand(rows, 1, -1) if rows == 3 else torch.arange(LONGEST)[None]
    for call in calls:
        for found, expected in zip(
            frozen(torch.zeros(1), positions[..., :9], **call),
            rotary(kind)[0](torch.zeros(1), positions, **call),
            strict=True,
        ):
            torch.testing.assert_close(found, expected[..., :9, :])


def test_what_cannot_be_frozen_is_refused() -> None:
    """PhiMoE's module looks at the positions itself."""
    config = transformers.PhimoeConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        rope_parameters=LONGROPE | {"short_mscale": 1.0, "long_mscale": 1.3},
    )
    with pytest.raises(ConfigError, match=r"PhimoeRotaryEmbedding .*longrope"):
        freeze_rope(PhimoeRotaryEmbedding(config), LONGEST)

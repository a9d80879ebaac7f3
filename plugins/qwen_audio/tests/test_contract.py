"""Qwen2-Audio keeps the contract; at the published length of thirty seconds, too, its tokens are transformers'."""

from __future__ import annotations

from pathlib import Path

from corellm import LLM, SamplingParams
from corellm_qwen_audio.contract import TestQwen2Audio as TestQwen2Audio
from corellm_qwen_audio.tiny import make_tiny_checkpoint
from corellm_testing import Reference
from corellm_testing.items import make_audio

RATE = 16_000
PLACEHOLDER = "<|audio_bos|><|AUDIO|><|audio_eos|>"


def test_thirty_seconds(tmp_path: Path) -> None:
    """Thirty seconds, one sample less, and short items in the same prompt, in chunks."""
    path = make_tiny_checkpoint(tmp_path)
    reference = Reference(path)
    samples = [[30 * RATE], [336, 30 * RATE - 1, 3 * RATE]]
    requests = [(PLACEHOLDER * len(group), [make_audio(n, RATE, n) for n in group]) for group in samples]
    params = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)
    with LLM(str(path), dtype="float32", max_num_batched_tokens=256) as llm:
        prompts = [{"prompt": text, "multi_modal_data": {"audio": items}} for text, items in requests]
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for output, (text, items) in zip(outputs, requests, strict=True):
        want = reference.generate(text, {"audio": items}, {}, 8)
        assert output.prompt_token_ids == want.prompt_token_ids
        assert output.outputs[0].token_ids == want.token_ids

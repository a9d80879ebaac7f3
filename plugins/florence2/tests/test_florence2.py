"""What is Florence-2's own: tasks, outputs by transformers' `generate` in every setting of the engine, limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import (
    CheckpointError,
    ConfigError,
    InvalidParameterError,
    ProcessorKwargsError,
    PromptError,
    PromptTooLongError,
)
from corellm_florence2.tiny import make_tiny_checkpoint
from corellm_testing.together import generate_together

IMAGE_TOKENS = 17
LENGTHS = (70, 8, 61, 17, 46, 12, 65, 5)
PROMPTS = (
    "<OD>",
    "<CAPTION>",
    "<CAPTION_TO_PHRASE_GROUNDING>a red circle",
    "<REGION_TO_CATEGORY><loc_3><loc_5><loc_6><loc_7>",
    "What shape is in the picture?",
    "<DETAILED_CAPTION>",
    "How many objects are there? one two three four five six seven eight nine ten",
    "",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("florence2"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    """The checkpoint, loaded."""
    with LLM(str(checkpoint), dtype="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def processor(checkpoint: Path) -> Any:
    """The oracle of processing."""
    return transformers.AutoProcessor.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    """The oracle of tokens."""
    return transformers.Florence2ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()


def make_image(seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (30 + 7 * seed, 60 - 3 * seed, 3), dtype=np.uint8))


def prompt(text: str, seed: int) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"image": make_image(seed)}}


def greedy(count: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, min_tokens=count, **more)


@pytest.fixture(scope="module")
def expected(processor: Any, reference: Any) -> list[list[int]]:
    """Transformers' tokens behind the two that every output begins with."""
    outputs = []
    for i, (text, count) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        inputs = processor(text=text, images=make_image(i), return_tensors="pt")
        made = reference.generate(
            **inputs, max_new_tokens=count + 1, min_new_tokens=count + 1, do_sample=False, num_beams=1
        )[0].tolist()
        assert made[:2] == [processor.tokenizer.eos_token_id, processor.tokenizer.bos_token_id]
        outputs.append(made[2:])
    assert len({tuple(tokens[:5]) for tokens in outputs}) > len(outputs) // 2
    assert len({tuple(tokens) for tokens in outputs}) == len(outputs)
    return outputs


# --- processing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", PROMPTS)
def test_tasks_become_what_the_processor_makes_of_them(llm: LLM, processor: Any, text: str) -> None:
    """Image tokens, `<s>`, the task written out, `</s>`; the decoder starts as `generate` does."""
    got = llm.engine.input_processor.process(prompt(text, 1))
    assert got.token_ids == processor(text=text, images=make_image(1))["input_ids"][0]
    tokenizer = processor.tokenizer
    names = tokenizer.convert_ids_to_tokens(got.token_ids)
    assert (names[: IMAGE_TOKENS + 1], names[-1]) == (["<image>"] * IMAGE_TOKENS + ["<s>"], "</s>")
    assert got.decoder is not None
    assert list(got.decoder.token_ids) == [tokenizer.eos_token_id, tokenizer.bos_token_id]


@pytest.mark.parametrize("text", ["<OD>", "What is this?"])
def test_a_prompt_without_an_image(llm: LLM, processor: Any, text: str) -> None:
    """No special tokens, as in transformers."""
    assert llm.engine.input_processor.process(text).token_ids == processor(text=text)["input_ids"][0]


def test_a_task_that_stands_alone(llm: LLM) -> None:
    """`<OD>` with more beside it is refused with transformers' reason."""
    with pytest.raises(PromptError, match="<OD>"):
        llm.engine.input_processor.process(prompt("<OD> cats", 1))


def test_a_conversation_names_a_task(llm: LLM, processor: Any) -> None:
    """Its text is the prompt; a special token that a user typed stays text, also where a task is written out."""
    process = llm.engine.input_processor.process_chat
    parts = [{"type": "image", "image": make_image(2)}, {"type": "text", "text": "<OD>"}]
    got = process([{"role": "user", "content": parts}])
    assert got.token_ids == processor(text="<OD>", images=make_image(2))["input_ids"][0]
    typed = "<REGION_TO_CATEGORY><loc_3> </s> <image>"
    got = process([{"role": "user", "content": [parts[0], {"type": "text", "text": typed}]}])
    text = got.token_ids[IMAGE_TOKENS + 1 : -1]
    tokenizer = processor.tokenizer
    assert tokenizer.decode(text) == "What is the region <loc_3> </s> <image>?"
    assert not set(text) & set(tokenizer.added_tokens_decoder)


def test_images_of_another_size_are_refused(llm: LLM) -> None:
    """The processor states one number of tokens for all."""
    given = {**prompt("", 1), "mm_processor_kwargs": {"size": {"height": 32, "width": 32}}}
    with pytest.raises(ProcessorKwargsError, match="size"):
        llm.engine.input_processor.process(given)


# --- output -----------------------------------------------------------------------------------------------------------

BACKENDS = {"cpu": "cpu", "reference": "reference", "the fastest": None}
SETTINGS: dict[str, dict[str, Any]] = {
    "a token a step": {"max_num_batched_tokens": 1},
    "cpu, blocks of 16, steps of 16": {"attention_backend": "cpu", "block_size": 16, "max_num_batched_tokens": 16},
    "reference, blocks of 32, steps of 64, no prefix caching": {
        "attention_backend": "reference", "block_size": 32, "max_num_batched_tokens": 64,
        "enable_prefix_caching": False,
    },
    "whole prompts, blocks of 8": {"enable_chunked_prefill": False, "max_num_batched_tokens": 512, "block_size": 8},
    "one at a time, plain layers": {"max_num_seqs": 1, "fuse_layers": False},
}  # fmt: skip
FIRST = 24
"""Tokens that are compared where memory need not be filled."""
BLOCKS = {8: 26, 16: 13}
SHORT = {
    f"{mode}, {size}, {backend}": {
        "preemption_mode": mode, "block_size": size, "attention_backend": BACKENDS[backend],
        "num_kv_blocks": BLOCKS[size], "max_model_len": 96, "enable_prefix_caching": caching,
    }
    for mode, size, backend, caching in (
        ("recompute", 8, "the fastest", True), ("recompute", 16, "cpu", False), ("swap", 8, "reference", True),
        ("swap", 16, "the fastest", False),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", [*SETTINGS, *SHORT])
def test_greedy_tokens_are_transformers(checkpoint: Path, expected: list[list[int]], name: str) -> None:
    """In every setting of the engine; twice, so that later requests find what earlier ones left."""
    settings, most = (SHORT[name], max(LENGTHS)) if name in SHORT else (SETTINGS[name], FIRST)
    params = [greedy(min(count, most)) for count in LENGTHS]
    device = "cpu" if settings.get("attention_backend") == "cpu" else "auto"
    with LLM(str(checkpoint), dtype="float32", device=device, **settings) as llm:
        for _ in range(2):
            given = [prompt(text, i) for i, text in enumerate(PROMPTS)]
            outputs = generate_together(llm, given, params)
            assert [output.outputs[0].token_ids for output in outputs] == [tokens[:most] for tokens in expected]
        blocks = llm.engine.scheduler.blocks
        blocks.check_integrity()
        assert blocks.num_free_blocks == blocks.capacity
        if name in SHORT:
            assert llm.engine.scheduler.get_stats().num_preemptions


def test_completions_share_one_encoders_run(llm: LLM, expected: list[list[int]]) -> None:
    """Three completions of a prompt: the encoder runs once, and each has transformers' tokens."""
    llm.engine.reset_prefix_cache()
    runs = []
    model: Any = llm.engine.runner.model
    hook = model.get_encoder().register_forward_hook(lambda *_: runs.append(1))
    try:
        (output,) = llm.generate(prompt(PROMPTS[0], 0), greedy(LENGTHS[0], n=3), use_tqdm=False)
        (again,) = llm.generate(prompt(PROMPTS[0], 0), greedy(LENGTHS[0]), use_tqdm=False)
    finally:
        hook.remove()
    assert [completion.token_ids for completion in output.outputs] == [expected[0]] * 3
    assert again.outputs[0].token_ids == expected[0]
    assert len(runs) == 1
    assert again.num_cached_tokens == len(again.prompt_token_ids)


def test_log_probabilities(llm: LLM, processor: Any, reference: Any, expected: list[list[int]]) -> None:
    """They equal those of transformers' forward pass."""
    (output,) = llm.generate(prompt(PROMPTS[0], 0), greedy(8, logprobs=0), use_tqdm=False)
    start = [processor.tokenizer.eos_token_id, processor.tokenizer.bos_token_id]
    tokens = [*start, *expected[0][:8]]
    inputs = processor(text=PROMPTS[0], images=make_image(0), return_tensors="pt")
    with torch.inference_mode():
        logits = reference(**inputs, decoder_input_ids=torch.tensor([tokens])).logits[0]
    wanted = torch.log_softmax(logits, -1)[range(1, len(tokens) - 1), tokens[2:]].tolist()
    places = output.outputs[0].logprobs
    assert places is not None
    found = [place[token].logprob for place, token in zip(places, tokens[2:], strict=True)]
    assert found == pytest.approx(wanted, abs=1e-4)


def test_prompt_log_probabilities_are_refused(llm: LLM) -> None:
    """The encoder reads the prompt: its tokens have no probability."""
    with pytest.raises(InvalidParameterError, match="prompt_logprobs"):
        llm.generate(prompt(PROMPTS[0], 0), greedy(2, prompt_logprobs=0), use_tqdm=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(checkpoint: Path, processor: Any, reference: Any, dtype: str) -> None:
    """The first token's log-probability is the one in float32, nearly."""
    with LLM(str(checkpoint), dtype=dtype) as llm:
        (output,) = llm.generate(prompt("<OD>", 0), greedy(1, logprobs=0), use_tqdm=False)
    start = torch.tensor([[processor.tokenizer.eos_token_id, processor.tokenizer.bos_token_id]])
    with torch.inference_mode():
        inputs = processor(text="<OD>", images=make_image(0), return_tensors="pt")
        logits = reference(**inputs, decoder_input_ids=start).logits[0, -1]
    token = output.outputs[0].token_ids[0]
    assert output.outputs[0].logprobs is not None
    got = output.outputs[0].logprobs[0][token].logprob
    assert got == pytest.approx(torch.log_softmax(logits, -1)[token].item(), abs=0.3)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_encoder(llm: LLM) -> None:
    """Refused before the engine, with both numbers; the decoder's limit is `max_model_len`."""
    with pytest.raises(PromptTooLongError, match=r"\d+ tokens, 17 of them .* 512"):
        llm.engine.input_processor.process(prompt("one two " * 400, 1))
    assert PromptTooLongError.status == 400
    assert llm.engine.max_model_len == 512


def test_no_room_for_states(checkpoint: Path) -> None:
    """A cache that holds the decoder's tokens, and not the states besides: refused with the numbers."""
    with LLM(str(checkpoint), dtype="float32", num_kv_blocks=2, max_model_len=32) as llm:
        (output,) = llm.generate(prompt("<OD>", 1), greedy(2), use_tqdm=False, on_error="return")
        assert isinstance(output.error, PromptTooLongError)
        assert "55 states" in str(output.error)
        assert "32 tokens" in str(output.error)


def test_what_an_encoder_decoder_does_not_take(checkpoint: Path, llm: LLM) -> None:
    """A cut prompt, a quantized cache, more positions than the decoder has: each refused with its reason."""
    with pytest.raises(InvalidParameterError, match="whole prompts"):
        llm.generate("What?", SamplingParams(truncate_prompt_tokens=1), use_tqdm=False)
    with pytest.raises(ConfigError, match="encoder are not quantized"):
        LLM(str(checkpoint), dtype="float32", kv_cache_dtype="int8")
    with pytest.raises(ConfigError, match=r"max_model_len=600 .*512"):
        LLM(str(checkpoint), dtype="float32", max_model_len=600)


def test_another_image_token_in_the_configuration(tmp_path: Path) -> None:
    """Refused before weights are read, with both ids."""
    path = make_tiny_checkpoint(tmp_path, stated_image_token=1)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="make image_token_id there"):
        LLM(str(path))

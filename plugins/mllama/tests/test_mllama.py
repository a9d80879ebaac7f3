"""What is Mllama's own: which text sees which images, BOS, transformers' outputs in settings of the engine."""

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
from corellm.errors import ConfigError, ItemLimitError, ProcessorKwargsError, PromptTooLongError
from corellm_mllama.tiny import make_tiny_checkpoint
from corellm_testing.together import generate_together

PER_TILE, TILES = 17, 4
IMAGE = "<|image|>"
BOS = "<|begin_of_text|>"
SIZES = ((30, 90), (60, 20), (32, 32), (90, 80), (20, 120), (64, 30), (31, 33))
PROMPTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("What shape is in the picture?", ()),
    (f"{IMAGE}What shape is in the picture?", (0,)),
    (f"one two three {IMAGE} yes", (1,)),
    (f"one two {IMAGE}{IMAGE} no {IMAGE} left", (2, 3, 4)),
    (f"left {IMAGE} right {IMAGE} above", (5, 1)),
    (f"{IMAGE}{BOS}How many objects are there? one two three four five six seven", (3,)),
    ("USER: Describe the image. ASSISTANT:", ()),
    (f"{BOS}What? {IMAGE}", (2,)),
)
"""Texts, and their images' seeds."""
LENGTHS = (120, 50, 70, 21, 16, 60, 90, 9)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("mllama"))


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
    return transformers.MllamaForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()


def make_image(seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (*SIZES[seed], 3), dtype=np.uint8))


def prompt(text: str, seeds: tuple[int, ...]) -> dict[str, Any]:
    images = {"multi_modal_data": {"image": [make_image(seed) for seed in seeds]}} if seeds else {}
    return {"prompt": text, **images}


def inputs_of(processor: Any, text: str, seeds: tuple[int, ...]) -> Any:
    images = {"images": [make_image(seed) for seed in seeds]} if seeds else {}
    return processor(text=text, return_tensors="pt", **images)


def greedy(count: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, min_tokens=count, **more)


@pytest.fixture(scope="module")
def expected(processor: Any, reference: Any) -> list[list[int]]:
    """Transformers' tokens."""
    outputs = []
    for (text, seeds), count in zip(PROMPTS, LENGTHS, strict=True):
        inputs = inputs_of(processor, text, seeds)
        made = reference.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        outputs.append(made[0, inputs["input_ids"].shape[1] :].tolist())
    assert len({tuple(tokens[:5]) for tokens in outputs}) == len(outputs)
    return outputs


# --- processing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("add_bos", [True, False])
def test_tokens_are_the_processors(tmp_path: Path, add_bos: bool) -> None:
    """Also BOS, which it puts behind the first images: as text, whatever the tokenizer adds."""
    path = make_tiny_checkpoint(tmp_path, add_bos=add_bos)
    processor = transformers.AutoProcessor.from_pretrained(path)
    with LLM(str(path), dtype="float32") as llm:
        for text, seeds in (*PROMPTS, (f"{IMAGE}{IMAGE}yes {IMAGE}", (0, 1, 2)), (f"yes{BOS}", ())):
            got = llm.engine.input_processor.process(prompt(text, seeds))
            assert got.token_ids == inputs_of(processor, text, seeds)["input_ids"][0].tolist()
            assert [f.placeholder.num_states for f in got.features] == [TILES * PER_TILE] * len(seeds)


def test_a_conversation_has_one_bos(llm: LLM, processor: Any) -> None:
    """The prompt is what transformers' `apply_chat_template` makes of the conversation."""
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "image", "image": make_image(1)}, {"type": "text", "text": "What?"}]},
    ]
    got = llm.engine.input_processor.process_chat(messages)
    wanted = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    assert got.token_ids == wanted["input_ids"][0]
    assert got.token_ids.count(processor.tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(("text", "seeds"), [case for case in PROMPTS if case[1]])
def test_what_text_sees_is_the_processors_mask(llm: LLM, processor: Any, text: str, seeds: tuple[int, ...]) -> None:
    """Tiles that each token sees; states are those of all images' tiles, in order, then padding."""
    mask = inputs_of(processor, text, seeds)["cross_attention_mask"][0]  # [tokens, images, tiles]
    processed = llm.engine.input_processor.process(prompt(text, seeds))
    tiles = [int(feature.data["aspect_ratio_mask"].data.sum()) for feature in processed.features]
    in_order = torch.cat([mask[:, image, :count] for image, count in enumerate(tiles)], dim=1)
    seen = torch.zeros(len(mask), sum(tiles), dtype=torch.long)
    visible = llm.engine.input_processor.part_of(processed).for_worker()["visible_states"]
    for token, start, end in visible:
        assert start % PER_TILE == end % PER_TILE == 0
        seen[token:] = 0
        seen[token:, start // PER_TILE : end // PER_TILE] = 1
    assert torch.equal(seen, in_order)
    assert int(mask.sum()) == int(in_order.sum())


@pytest.mark.parametrize("kwargs", [{"max_image_tiles": 2}, {"size": {"height": 16, "width": 16}}])
def test_other_tiles_are_refused(llm: LLM, kwargs: dict[str, Any]) -> None:
    """The tower has places for one number of tiles."""
    with pytest.raises(ProcessorKwargsError, match="leave out size and max_image_tiles"):
        llm.engine.input_processor.process({**prompt(*PROMPTS[1]), "mm_processor_kwargs": kwargs})


# --- output -----------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "reference, blocks of 8": {"attention_backend": "reference", "block_size": 8},
    "whole prompts, blocks of 32": {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024, "block_size": 32},
    "a token a step, no kept outputs of encoders": {
        "max_num_batched_tokens": 1, "max_num_seqs": 1, "encoder_cache_size": 0,
    },
    "chunks of 3, plain layers": {"max_num_batched_tokens": 3, "fuse_layers": False},
    "chunks of 3, cpu, no prefix caching": {
        "max_num_batched_tokens": 3, "attention_backend": "cpu", "enable_prefix_caching": False,
    },
}  # fmt: skip
FIRST = 24
"""Tokens that are compared where memory need not be filled."""
SHORT: dict[str, dict[str, Any]] = {
    f"{mode}, {size}, {backend or 'the fastest'}": {
        "preemption_mode": mode, "block_size": size, "attention_backend": backend, "max_model_len": 160,
        "num_kv_blocks": 320 // size, "enable_prefix_caching": caching, "max_num_batched_tokens": budget,
    }
    for mode, size, backend, caching, budget in (
        ("recompute", 8, None, True, 64), ("recompute", 16, "cpu", False, 7), ("swap", 8, "reference", True, 64),
        ("swap", 16, None, False, 7),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", [*SETTINGS, *SHORT])
def test_greedy_tokens_are_transformers(checkpoint: Path, expected: list[list[int]], name: str) -> None:
    """Text alone beside one image and several, in every setting; twice, so that later ones find what earlier ones left.

    With few blocks requests are preempted, with their images' states.
    """
    settings, most = (SHORT[name], max(LENGTHS)) if name in SHORT else (SETTINGS[name], FIRST)
    params = [greedy(min(count, most)) for count in LENGTHS]
    device = "cpu" if settings.get("attention_backend") == "cpu" else "auto"
    with LLM(str(checkpoint), dtype="float32", device=device, **settings) as llm:
        for _ in range(2):
            outputs = generate_together(llm, [prompt(*case) for case in PROMPTS], params)
            assert [output.outputs[0].token_ids for output in outputs] == [tokens[:most] for tokens in expected]
        blocks = llm.engine.scheduler.blocks
        blocks.check_integrity()
        assert blocks.num_free_blocks == blocks.capacity
        if name in SHORT:
            assert llm.engine.scheduler.get_stats().num_preemptions


def test_alone_as_in_a_batch(llm: LLM, expected: list[list[int]]) -> None:
    """Each alone, without what the others left."""
    for case, count, tokens in zip(PROMPTS, LENGTHS, expected, strict=True):
        llm.engine.reset_prefix_cache()
        (output,) = llm.generate(prompt(*case), greedy(count), use_tqdm=False)
        assert output.outputs[0].token_ids == tokens
        assert output.prompt_token_ids is not None
        assert output.prompt_token_ids.count(llm.engine.context.hf_config.image_token_index) == len(case[1])


def test_images_are_told_apart(llm: LLM, expected: list[list[int]]) -> None:
    """Another image, or the same ones in another order: another output."""
    case, count = PROMPTS[4], LENGTHS[4]
    for seeds in ((5, 2), (1, 5)):
        (output,) = llm.generate(prompt(case[0], seeds), greedy(count), use_tqdm=False)
        assert output.outputs[0].token_ids != expected[4]


def test_equal_images_are_encoded_once(llm: LLM) -> None:
    """Also behind other text; an equal beginning is found in the prefix cache, and goes on as without it."""
    llm.engine.reset_prefix_cache()
    runs: list[int] = []
    hook = llm.engine.runner.model.model.vision_model.register_forward_hook(lambda *_: runs.append(1))  # type: ignore[union-attr]
    begun = f"{IMAGE}one two three four five six seven eight nine ten one two three four five six seven eight nine ten"
    try:
        first, other, longer = (
            llm.generate(prompt(text, (6,)), greedy(6), use_tqdm=False)[0]
            for text in (begun, f"x{IMAGE}", f"{begun} yes")
        )
    finally:
        hook.remove()
    assert len(runs) == 1
    assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 0)
    assert longer.num_cached_tokens >= llm.engine.config.cache.block_size
    llm.engine.reset_prefix_cache()
    (again,) = llm.generate(prompt(f"{begun} yes", (6,)), greedy(6), use_tqdm=False)
    assert again.outputs[0].token_ids == longer.outputs[0].token_ids


def test_the_same_text_behind_another_image_shares_nothing(llm: LLM) -> None:
    """Its tokens depend on the image, those before it, too."""
    llm.engine.reset_prefix_cache()
    text = f"one two three four five six seven eight nine ten one two three four five six {IMAGE} yes"
    cached = [llm.generate(prompt(text, (seed,)), greedy(2), use_tqdm=False)[0].num_cached_tokens for seed in (0, 1, 0)]
    assert cached[:2] == [0, 0]
    assert cached[2]


@pytest.mark.parametrize("index", [0, 2, 3])
def test_log_probabilities(llm: LLM, processor: Any, reference: Any, expected: list[list[int]], index: int) -> None:
    """Log-probabilities of prompt and output are those of transformers' forward pass."""
    text, seeds = PROMPTS[index]
    (output,) = llm.generate(prompt(text, seeds), greedy(8, logprobs=0, prompt_logprobs=0), use_tqdm=False)
    inputs = inputs_of(processor, text, seeds)
    length = inputs["input_ids"].shape[1]
    tokens = [*inputs.pop("input_ids")[0].tolist(), *expected[index][:8]]
    if seeds:
        mask = inputs["cross_attention_mask"]
        inputs["cross_attention_mask"] = torch.cat([mask, mask[:, -1:].expand(-1, 8, -1, -1)], dim=1)
    inputs["attention_mask"] = torch.ones(1, len(tokens), dtype=torch.long)
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([tokens]), **inputs).logits[0]
    known = range(logits.shape[-1])  # the output layer has no image token
    wanted = {
        i: torch.log_softmax(logits[i - 1], -1)[tokens[i]].item() for i in range(1, len(tokens)) if tokens[i] in known
    }
    assert output.prompt_logprobs is not None
    assert output.outputs[0].logprobs is not None
    places = [*output.prompt_logprobs, *output.outputs[0].logprobs]
    assert len(places) == length + 8
    for i, logprob in wanted.items():
        place = places[i]
        assert place is not None
        assert place[tokens[i]].logprob == pytest.approx(logprob, abs=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(checkpoint: Path, processor: Any, reference: Any, dtype: str) -> None:
    """The first token's log-probability is the one in float32, nearly."""
    with LLM(str(checkpoint), dtype=dtype) as llm:
        (output,) = llm.generate(prompt(*PROMPTS[1]), greedy(1, logprobs=0), use_tqdm=False)
    with torch.inference_mode():
        logits = reference(**inputs_of(processor, *PROMPTS[1])).logits[0, -1]
    token = output.outputs[0].token_ids[0]
    assert output.outputs[0].logprobs is not None
    got = output.outputs[0].logprobs[0][token].logprob
    assert got == pytest.approx(torch.log_softmax(logits, -1)[token].item(), abs=0.3)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_layers_of_images_have_no_memory_of_their_own(llm: LLM) -> None:
    """Blocks of states are no blocks of tokens: each such layer uses the memory of a layer of text."""
    layers = llm.engine.runner.kv_cache.layers
    assert list(layers) == [0, 1, 2, 3]
    assert (layers[1], layers[3]) == (layers[0], layers[2])
    assert layers[0] is not layers[2]


def test_no_room_for_states(checkpoint: Path) -> None:
    """A cache that holds the prompt's tokens, and not the states besides: refused with the numbers; text runs."""
    with LLM(str(checkpoint), dtype="float32", num_kv_blocks=5, max_model_len=64) as llm:
        image, text = llm.generate(
            [prompt(*PROMPTS[3]), prompt(*PROMPTS[0])], greedy(2), use_tqdm=False, on_error="return"
        )
    assert isinstance(image.error, PromptTooLongError)
    assert "204 states" in str(image.error)
    assert text.error is None


def test_what_it_does_not_take(checkpoint: Path, llm: LLM) -> None:
    """A quantized cache, embeddings, no images where the operator says so: each refused with its reason."""
    with pytest.raises(ConfigError, match="states of items are not quantized"):
        LLM(str(checkpoint), dtype="float32", kv_cache_dtype="int8")
    embeds = torch.zeros(1, TILES * PER_TILE, 64)
    given = {"prompt": f"{IMAGE}?", "multi_modal_data": {"image_embeds": embeds}}
    (output,) = llm.generate(given, greedy(1), use_tqdm=False, on_error="return")
    assert "padding" in str(output.error)
    with LLM(str(checkpoint), dtype="float32", limit_mm_per_prompt={"image": 1}) as limited:
        (output,) = limited.generate(prompt(*PROMPTS[4]), greedy(1), use_tqdm=False, on_error="return")
    assert isinstance(output.error, ItemLimitError)

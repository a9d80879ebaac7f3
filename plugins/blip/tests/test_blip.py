"""What is BLIP's own: the token that is the image, transformers' outputs in settings of the engine, published files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from corellm import LLM, SamplingParams
from corellm.errors import (
    ConfigError,
    EmbeddingInputError,
    ItemLimitError,
    ProcessorKwargsError,
    PromptTooLongError,
    SurplusPlaceholderError,
    UnsupportedModalityError,
)
from corellm_blip.contract import BlipReference
from corellm_blip.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image
from corellm_testing.together import generate_together

STATES = 17
"""Of the tiny checkpoint's images: 4 x 4 patches, and one for the whole."""
Case = tuple[str, int | None]
CASES: tuple[Case, ...] = (
    ("", 0),
    ("", 1),
    ("a picture of one two three four", 1),
    ("What shape is in the picture?", None),
    ("a picture of one two three", 2),
    ("yes", None),
    ("a picture of one two three four", 3),
)
"""Texts, and their images' seeds; None for text alone."""
LENGTHS = (40, 70, 21, 60, 33, 50, 64)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint whose tower is wider than its text, as the large published one; not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("blip"), tower_width=96)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    """The checkpoint, loaded."""
    with LLM(str(checkpoint), dtype="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> BlipReference:
    """Transformers' processor and model."""
    return BlipReference(checkpoint)


def media_of(seed: int | None) -> dict[str, list[Any]]:
    """An image, another one for each seed."""
    return {} if seed is None else {"image": [make_image(60 + 7 * seed, 50, seed)]}


def prompt(text: str, seed: int | None) -> dict[str, Any]:
    """A request."""
    return {"prompt": text, "multi_modal_data": media_of(seed)}


def greedy(count: int, **more: Any) -> SamplingParams:
    """Exactly so many tokens."""
    return SamplingParams(temperature=0, max_tokens=count, min_tokens=count, **more)


def generated(llm: LLM, prompts: Sequence[Any], count: int = 8) -> list[list[int]]:
    """The engine's tokens of requests served together."""
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, greedy(count), use_tqdm=False)]


@pytest.fixture(scope="module")
def expected(reference: BlipReference) -> list[list[int]]:
    """Transformers' tokens of `CASES`."""
    outputs = [
        reference.generate(text, media_of(seed), {}, count).token_ids
        for (text, seed), count in zip(CASES, LENGTHS, strict=True)
    ]
    assert len({tuple(tokens[:5]) for tokens in outputs}) == len(outputs)
    assert all(len(set(tokens)) > len(tokens) // 4 for tokens in outputs)
    return outputs


# --- the prompt -------------------------------------------------------------------------------------------------------


def test_an_image_is_the_token_that_begins_captions(llm: LLM) -> None:
    """The layout, written out: neither `[CLS]` nor `[SEP]` beside an image, and all of it is seen from its token on."""
    process, names = llm.engine.input_processor, llm.engine.context.tokenizer.convert_ids_to_tokens
    got = process.process(prompt("a dog", 1))
    assert names(got.token_ids) == ["[DEC]", "a", "d", "##o", "##g"]
    (image,) = got.features
    assert (image.placeholder.offset, image.placeholder.length, image.placeholder.num_states) == (0, 1, STATES)
    part = process.part_of(got)
    assert part is not None
    assert part.for_worker() == {"visible_states": ((0, 0, STATES),)}
    assert names(process.process(prompt("", 1)).token_ids) == ["[DEC]"]
    assert names(process.process("a dog").token_ids) == ["[CLS]", "a", "d", "##o", "##g"]


def test_token_ids_of_every_form_are_one_prompt(llm: LLM, reference: BlipReference) -> None:
    """The processor's, those that `generate` makes of them, and the text's alone."""
    text = CASES[2][0]
    whole = reference.processor.tokenizer(text)["input_ids"]
    wanted = reference.process(text, media_of(1), {})["input_ids"][0].tolist()
    assert wanted[1:] == whole[1:-1]
    for ids in (whole, whole[:-1], whole[1:-1], wanted, [*wanted, whole[-1]]):
        got = llm.engine.input_processor.process({"prompt_token_ids": ids, "multi_modal_data": media_of(1)})
        assert got.token_ids == wanted


def test_an_image_alone_is_what_generate_begins_with(reference: BlipReference, llm: LLM) -> None:
    """Transformers' `generate` without any text gives the tokens of an empty prompt."""
    pixels = reference.processor(images=media_of(1)["image"], return_tensors="pt")
    made = reference.model.generate(**pixels, max_new_tokens=8, min_new_tokens=8, do_sample=False)[0].tolist()
    (output,) = llm.generate(prompt("", 1), greedy(8), use_tqdm=False)
    assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == made


# --- output -----------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "reference, chunks of 16, blocks of 8": {
        "attention_backend": "reference", "max_num_batched_tokens": 16, "block_size": 8,
    },
    "whole prompts, blocks of 32": {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024, "block_size": 32},
    "a token a step, no kept outputs of encoders": {
        "max_num_batched_tokens": 1, "max_num_seqs": 1, "encoder_cache_size": 0,
    },
    "chunks of 3, plain layers": {"max_num_batched_tokens": 3, "fuse_layers": False},
    "cpu, no prefix caching": {"attention_backend": "cpu", "enable_prefix_caching": False},
}  # fmt: skip
FIRST = 24
"""Tokens that are compared where memory need not be filled."""
SHORT: dict[str, dict[str, Any]] = {
    f"{mode}, {size}, {backend or 'the fastest'}": {
        "preemption_mode": mode, "block_size": size, "attention_backend": backend, "max_model_len": 128,
        "num_kv_blocks": 192 // size, "enable_prefix_caching": caching, "max_num_batched_tokens": budget,
    }
    for mode, size, backend, caching, budget in (
        ("recompute", 8, None, True, 64), ("recompute", 16, "cpu", False, 7),
        ("swap", 8, "reference", True, 64), ("swap", 16, None, False, 7),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", [*SETTINGS, *SHORT])
def test_greedy_tokens_are_transformers(checkpoint: Path, expected: list[list[int]], name: str) -> None:
    """Text alone beside images, in every setting; twice, so that later ones find what earlier ones left.

    With few blocks requests are preempted, with their images' states.
    """
    settings, most = (SHORT[name], max(LENGTHS)) if name in SHORT else (SETTINGS[name], FIRST)
    params = [greedy(min(count, most)) for count in LENGTHS]
    device = "cpu" if settings.get("attention_backend") == "cpu" else "auto"
    with LLM(str(checkpoint), dtype="float32", device=device, **settings) as llm:
        for _ in range(2):
            outputs = generate_together(llm, [prompt(*case) for case in CASES], params)
            assert [output.outputs[0].token_ids for output in outputs] == [tokens[:most] for tokens in expected]
        blocks = llm.engine.scheduler.blocks
        blocks.check_integrity()
        assert blocks.num_free_blocks == blocks.capacity
        if name in SHORT:
            assert llm.engine.scheduler.get_stats().num_preemptions


def test_a_beginning_is_shared_by_prompts_with_equal_images(checkpoint: Path, reference: BlipReference) -> None:
    """Blocks of text are found again beside the same image, not beside another one or none; outputs stay the same."""
    begun = "a picture of one two three"
    cases = [(f"{begun} four", 1), (f"{begun} five", 1), (f"{begun} five", 2), (f"{begun} five", None)]
    with LLM(str(checkpoint), dtype="float32", block_size=8) as llm:
        cached = []
        for text, seed in cases:
            (output,) = llm.generate(prompt(text, seed), greedy(8), use_tqdm=False)
            assert output.outputs[0].token_ids == reference.generate(text, media_of(seed), {}, 8).token_ids
            cached.append(output.num_cached_tokens)
    assert [bool(count) for count in cached] == [False, True, False, False]


@pytest.mark.parametrize("index", [1, 2, 3])
def test_log_probabilities(llm: LLM, reference: BlipReference, expected: list[list[int]], index: int) -> None:
    """Of prompt and output, they are those of transformers' forward pass."""
    text, seed = CASES[index]
    (output,) = llm.generate(prompt(text, seed), greedy(8, logprobs=0, prompt_logprobs=0), use_tqdm=False)
    inputs = reference.process(text, media_of(seed), {})
    tokens = [*inputs["input_ids"][0].tolist(), *expected[index][:8]]
    model = reference.model if seed is not None else reference.model.text_decoder
    with torch.inference_mode():
        logits = model(**{**inputs, "input_ids": torch.tensor([tokens])}).logits[0]
    assert output.prompt_logprobs is not None
    assert output.outputs[0].logprobs is not None
    places = [*output.prompt_logprobs, *output.outputs[0].logprobs]
    for i in range(1, len(tokens)):
        place = places[i]
        assert place is not None
        wanted = torch.log_softmax(logits[i - 1], -1)[tokens[i]].item()
        assert place[tokens[i]].logprob == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(checkpoint: Path, reference: BlipReference, dtype: str) -> None:
    """The first token's log-probability is the one in float32, nearly."""
    text, seed = CASES[2]
    with LLM(str(checkpoint), dtype=dtype) as llm:
        (output,) = llm.generate(prompt(text, seed), greedy(1, logprobs=0), use_tqdm=False)
    with torch.inference_mode():
        logits = reference.model(**reference.process(text, media_of(seed), {})).logits[0, -1]
    token = output.outputs[0].token_ids[0]
    assert output.outputs[0].logprobs is not None
    got = output.outputs[0].logprobs[0][token].logprob
    assert got == pytest.approx(torch.log_softmax(logits, -1)[token].item(), abs=0.3)


def test_embeddings_are_as_wide_as_the_tower(llm: LLM, reference: BlipReference, expected: list[list[int]]) -> None:
    """The tower's outputs stand in for the image; such of the text's width are refused with both numbers."""
    pixels = reference.process("", media_of(1), {})["pixel_values"]
    with torch.inference_mode():
        seen = reference.model.vision_model(pixels).last_hidden_state
    given = {"prompt": "", "multi_modal_data": {"image_embeds": seen}}
    assert generated(llm, [given]) == [expected[1][:8]]
    with pytest.raises(EmbeddingInputError, match="expected the model's hidden size 96, got 64"):
        llm.engine.input_processor.process({"prompt": "", "multi_modal_data": {"image_embeds": seen[..., :64]}})


def test_smaller_images(llm: LLM, reference: BlipReference) -> None:
    """A request's `size` changes the number of states, and positions are interpolated, as `generate` does when told."""
    kwargs = {"size": {"height": 28, "width": 42}}
    given = {**prompt("a", 1), "mm_processor_kwargs": kwargs}
    (image,) = llm.engine.input_processor.process(given).features
    assert image.placeholder.num_states == 1 + 2 * 3
    assert generated(llm, [given]) == [reference.generate("a", media_of(1), kwargs, 8).token_ids]


# --- published checkpoints --------------------------------------------------------------------------------------------

PUBLISHED = {
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "BlipImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "processor_class": "BlipProcessor",
    "resample": 3,
    "size": {"height": 384, "width": 384},
    "size_divisor": 32,
}
"""`preprocessor_config.json` of the captioning checkpoints."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published layout and image size: no processor of its own, a buffer among weights, tied embeddings."""
    path = tmp_path_factory.mktemp("published")
    make_tiny_checkpoint(path, image_size=384, patch_size=16, as_published=True, tied=True)
    (path / "processor_config.json").unlink()
    (path / "preprocessor_config.json").write_text(json.dumps(PUBLISHED))
    weights = load_file(path / "model.safetensors")
    weights["text_decoder.bert.embeddings.position_ids"] = torch.arange(1024)[None]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_published_checkpoints(published: Path) -> None:
    """An image is 577 states, begins with a token that the tokenizer lacks, and outputs are transformers'."""
    theirs = BlipReference(published)
    with LLM(str(published), dtype="float32") as llm:
        got = llm.engine.input_processor.process(prompt("a dog", 1))
        assert got.token_ids[0] == len(llm.engine.context.tokenizer)
        (image,) = got.features
        assert image.placeholder.num_states == 577
        assert torch.equal(image.data["pixel_values"].data, theirs.process("", media_of(1), {})["pixel_values"][0])
        cases: list[Case] = [("", 1), ("a dog", 1), ("a dog", 2), ("a dog", None)]
        wanted = [theirs.generate(text, media_of(seed), {}, 8).token_ids for text, seed in cases]
        assert len({tuple(tokens) for tokens in wanted}) == len(cases)
        assert generated(llm, [prompt(*case) for case in cases]) == wanted


@pytest.mark.parametrize("stated", [None, 2])
def test_sep_alone_ends_captions(tmp_path: Path, stated: int | None) -> None:
    """As in transformers' `generate`, whatever `config.json`, and a file that was made of it, call the end."""
    path = make_tiny_checkpoint(tmp_path, as_published=True)
    if stated is not None:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": stated}))
    theirs = BlipReference(path)
    no_end, end = theirs.config.text_config.eos_token_id, theirs.processor.tokenizer.sep_token_id
    assert no_end == 2
    weights = load_file(path / "model.safetensors")
    weights["text_decoder.cls.predictions.decoder.bias"][[no_end, end]] += 2.5
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    wanted = []
    for seed in range(8):
        given = theirs.process("", media_of(seed), {})
        made = theirs.model.generate(pixel_values=given["pixel_values"], max_new_tokens=40, do_sample=False)
        wanted.append(made[0, 1:].tolist())
    assert any(no_end in tokens for tokens in wanted)
    assert any(len(tokens) < 40 and tokens[-1] == end for tokens in wanted)
    with LLM(str(path), dtype="float32") as llm:
        params = SamplingParams(temperature=0, max_tokens=40)
        outputs = llm.generate([prompt("", seed) for seed in range(8)], params, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == wanted


# --- limits -----------------------------------------------------------------------------------------------------------


def test_what_it_does_not_take(llm: LLM) -> None:
    """Two images, videos, audio, the image's token without an image, larger images: each refused with its reason."""
    process = llm.engine.input_processor.process
    two = {"prompt": "", "multi_modal_data": {"image": [make_image(40, 30, seed) for seed in (0, 1)]}}
    with pytest.raises(ItemLimitError):
        process(two)
    for modality in ("video", "audio"):
        with pytest.raises(UnsupportedModalityError, match=modality):
            process({"prompt": "", "multi_modal_data": {modality: torch.zeros(4, 30, 30, 3).numpy()}})
    begin = llm.engine.context.hf_config.text_config.bos_token_id
    with pytest.raises(SurplusPlaceholderError, match="there is no image"):
        process({"prompt_token_ids": [begin, 7]})
    with pytest.raises(ProcessorKwargsError, match="size"):
        process({**prompt("", 1), "mm_processor_kwargs": {"size": {"height": 112, "width": 112}}})


def test_an_image_without_a_patch_is_refused(llm: LLM) -> None:
    """As what is too small for the tower, and nothing is served wrongly."""
    small = {"size": {"height": 7, "width": 56}}
    with pytest.raises(ProcessorKwargsError, match="size"):
        llm.engine.input_processor.process({**prompt("", 1), "mm_processor_kwargs": small})


def test_no_room_for_states(checkpoint: Path) -> None:
    """A cache that holds the prompt, and not the states besides: refused with the numbers; text runs."""
    with LLM(str(checkpoint), dtype="float32", num_kv_blocks=2, max_model_len=16) as llm:
        image, text = llm.generate([prompt("", 1), prompt("a", None)], greedy(2), use_tqdm=False, on_error="return")
    assert isinstance(image.error, PromptTooLongError)
    assert f"{STATES} states" in str(image.error)
    assert text.error is None


def test_what_the_engine_does_not_run(checkpoint: Path) -> None:
    """A quantized cache (which plain torch has for no model), pooling, more positions than the decoder has: refused."""
    with pytest.raises(ConfigError, match=r"states of items are not quantized|has no such cache"):
        LLM(str(checkpoint), dtype="float32", kv_cache_dtype="int8")
    with pytest.raises(ConfigError, match="to generate only"):
        LLM(str(checkpoint), dtype="float32", runner="pooling")
    with pytest.raises(ConfigError, match=r"max_model_len=2000 .*1024"):
        LLM(str(checkpoint), dtype="float32", max_model_len=2000)

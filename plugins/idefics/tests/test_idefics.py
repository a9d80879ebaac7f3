"""What is IDEFICS's own: which text sees which image, the processor's tokens, transformers' outputs in settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import (
    CheckpointError,
    ConfigError,
    EmbeddingInputError,
    ItemLimitError,
    MissingPlaceholderError,
    ProcessorKwargsError,
    PromptTooLongError,
)
from corellm_idefics.marks import END_OF_TURN, IMAGE, MARK, Marks
from corellm_idefics.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image
from corellm_testing.together import generate_together

Prompt = Sequence[str | int]
"""Texts and the seeds of images, as transformers' processor takes them."""
PROMPTS: tuple[Prompt, ...] = (
    ("What shape is in the picture?",),
    (0, "What shape is in the picture?"),
    ("one two three", 1, "yes"),
    ("one two", 2, 3, "no", 4, "left"),
    ("left ", 5, " right", 1, "above  "),
    ("one</s> two", 3, "three</s>four five", 0, "</s>"),
    ("USER: Describe the image. ASSISTANT:",),
    ("What?", 2),
)
LENGTHS = (90, 50, 70, 21, 16, 60, 80, 9)
STATES = 5
"""Of an image of the tiny checkpoint."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("idefics"), num_layers=4, cross_layer_interval=2)


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
    return transformers.IdeficsForVisionText2Text.from_pretrained(checkpoint, dtype=torch.float32).eval()


def image_of(seed: int) -> Image.Image:
    """An image, another one for each seed."""
    image: Image.Image = make_image(40 + 9 * seed, 90 - 8 * seed, seed)
    return image


def request(parts: Prompt, **kwargs: Any) -> dict[str, Any]:
    """The engine's form of a prompt: one text, and the images beside it."""
    text = "".join(part if isinstance(part, str) else IMAGE for part in parts)
    images = [image_of(part) for part in parts if isinstance(part, int)]
    more = {"mm_processor_kwargs": kwargs} if kwargs else {}
    return {"prompt": text, **({"multi_modal_data": {"image": images}} if images else {}), **more}


def inputs_of(processor: Any, parts: Prompt) -> Any:
    """What transformers' processor makes of the same prompt."""
    prompt = [part if isinstance(part, str) else image_of(part) for part in parts]
    return processor(text=[prompt], return_tensors="pt")


def greedy(count: int, **more: Any) -> SamplingParams:
    """Settings for exactly so many tokens."""
    return SamplingParams(temperature=0, max_tokens=count, min_tokens=count, **more)


@pytest.fixture(scope="module")
def expected(processor: Any, reference: Any) -> list[tuple[list[int], list[int]]]:
    """Transformers' tokens, of prompts and outputs."""
    pairs = []
    for parts, count in zip(PROMPTS, LENGTHS, strict=True):
        inputs = inputs_of(processor, parts)
        made = reference.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False)[0].tolist()
        pairs.append((made[:-count], made[-count:]))
    assert len({tuple(output[:6]) for _, output in pairs}) == len(pairs)
    return pairs


def tokens_of(llm: LLM, prompts: Sequence[Any], counts: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The engine's tokens, of prompts and outputs."""
    outputs = generate_together(llm, prompts, [greedy(count) for count in counts])
    return [(output.prompt_token_ids, list(output.outputs[0].token_ids)) for output in outputs]


# --- processing -------------------------------------------------------------------------------------------------------

PIECES = (
    "What",
    " is",
    "  ",
    " ",
    "\n",
    "one two",
    "three ",
    "é",
    "日",
    "...",
    "<b>",
    " < ",
    "</s>",
    END_OF_TURN,
    "<s>",
)


@pytest.fixture(scope="module", params=[False, True], ids=["first", "always"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Marks]:
    """Processor and marks; texts behind a special token begin with a space of the tokenizer's, or not."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("marks"), legacy=request.param)
    return transformers.AutoProcessor.from_pretrained(path), Marks(transformers.AutoTokenizer.from_pretrained(path))


@given(parts=st.lists(st.one_of(st.sampled_from(PIECES), st.just(0)), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_tokens_are_the_processors(tools: tuple[Any, Marks], parts: list[str | int]) -> None:
    """Of any texts around any number of images; a second time nothing changes."""
    processor, marks = tools
    joined: list[str | int] = []  # neighbouring texts are one, as in one string
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    text = "".join(part if isinstance(part, str) else IMAGE for part in joined)
    put = marks.put(processor.tokenizer(text)["input_ids"])
    assert put == inputs_of(processor, joined)["input_ids"][0].tolist()
    assert marks.put(put) == put


def test_marks_in_a_text(tools: tuple[Any, Marks]) -> None:
    """An image with a mark on each side stays as it is; else a mark is text, as of the processor."""
    processor, marks = tools

    def put(text: str) -> list[int]:
        return marks.put(processor.tokenizer(text)["input_ids"])

    assert put(f"a{MARK}{IMAGE}{MARK}b") == inputs_of(processor, ["a", 0, "b"])["input_ids"][0].tolist()
    assert put(f"{MARK}{IMAGE}{MARK}{IMAGE}{MARK}") == inputs_of(processor, [0, 0])["input_ids"][0].tolist()
    for parts in ([0, f"{MARK}b"], [f"a{MARK}", 0], [0, MARK, 0], [f"{MARK} ", 0]):
        text = "".join(part if isinstance(part, str) else IMAGE for part in parts)
        assert put(text) == inputs_of(processor, parts)["input_ids"][0].tolist()


def test_what_each_token_sees_is_the_processors_mask(llm: LLM, processor: Any) -> None:
    """The last image before it, up to the end of a text."""
    for parts in PROMPTS:
        if all(isinstance(part, str) for part in parts):
            continue
        mask = inputs_of(processor, parts)["image_attention_mask"][0]  # [tokens, images]
        processed = llm.engine.input_processor.process(request(parts))
        assert [f.placeholder.num_states for f in processed.features] == [STATES] * mask.shape[1]
        seen = torch.zeros(len(mask), mask.shape[1] * STATES, dtype=mask.dtype)
        for token, start, end in llm.engine.input_processor.part_of(processed).for_worker()["visible_states"]:
            seen[token:] = 0
            seen[token:, start:end] = 1
        assert torch.equal(seen, mask.repeat_interleave(STATES, dim=1))


@pytest.mark.parametrize("instructed", [True, False])
def test_conversations(tmp_path: Path, instructed: bool) -> None:
    """The form of the model cards; an image that comes first has no space before it."""
    path = make_tiny_checkpoint(tmp_path, instructed=instructed)
    messages = [
        {"role": "user", "content": [{"type": "image", "image": image_of(1)}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "image", "image": image_of(2)}]},
    ]
    end = f"{END_OF_TURN}\n" if instructed else "\n"
    parts = ("User:", 1, f"What?{end}Assistant: one{end}User: And", 2, f"{end}Assistant:")
    processor = transformers.AutoProcessor.from_pretrained(path)
    with LLM(str(path), dtype="float32") as llm:
        got = llm.engine.input_processor.process_chat(messages)
    assert got.token_ids == inputs_of(processor, parts)["input_ids"][0].tolist()


# --- output -----------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "reference, blocks of 8, plain layers": {"attention_backend": "reference", "block_size": 8, "fuse_layers": False},
    "a token a step, no kept outputs of encoders": {
        "max_num_batched_tokens": 1, "max_num_seqs": 1, "encoder_cache_size": 0,
    },
    "cpu, chunks of 3, no prefix caching": {
        "attention_backend": "cpu", "max_num_batched_tokens": 3, "enable_prefix_caching": False,
    },
    "preemption by recompute": {
        "preemption_mode": "recompute", "block_size": 8, "num_kv_blocks": 24, "max_model_len": 140,
    },
    "preemption by swap": {
        "preemption_mode": "swap", "block_size": 8, "num_kv_blocks": 24, "max_model_len": 140,
        "max_num_batched_tokens": 7, "enable_prefix_caching": False,
    },
}  # fmt: skip
FIRST = 24
"""Tokens that are compared where memory need not be filled."""


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_tokens_are_transformers(
    checkpoint: Path, expected: list[tuple[list[int], list[int]]], name: str
) -> None:
    """Text alone beside one image and several, in every setting; twice, so that later ones find what earlier ones left.

    With few blocks requests are preempted, with their images' states.
    """
    options, preempts = SETTINGS[name], name.startswith("preemption")
    counts = [count if preempts else min(count, FIRST) for count in LENGTHS]
    wanted = [(tokens, output[:count]) for (tokens, output), count in zip(expected, counts, strict=True)]
    device = "cpu" if options.get("attention_backend") == "cpu" else "auto"
    with LLM(str(checkpoint), dtype="float32", device=device, **options) as llm:
        for _ in range(2):
            assert tokens_of(llm, [request(parts) for parts in PROMPTS], counts) == wanted
        blocks = llm.engine.scheduler.blocks
        blocks.check_integrity()
        assert blocks.num_free_blocks == blocks.capacity
        assert bool(llm.engine.scheduler.get_stats().num_preemptions) == preempts


def test_alone_as_in_a_batch(llm: LLM, expected: list[tuple[list[int], list[int]]]) -> None:
    """Each alone, without what the others left."""
    for parts, count, tokens in zip(PROMPTS, LENGTHS, expected, strict=True):
        llm.engine.reset_prefix_cache()
        assert tokens_of(llm, [request(parts)], [count]) == [tokens]


def test_images_are_told_apart(llm: LLM, expected: list[tuple[list[int], list[int]]]) -> None:
    """Another image, or the same ones in another order: another output, for the same prompt's tokens."""
    for other in (("left ", 4, " right", 1, "above  "), ("left ", 1, " right", 5, "above  ")):
        ((prompt, output),) = tokens_of(llm, [request(other)], [LENGTHS[4]])
        assert prompt == expected[4][0]
        assert output != expected[4][1]


def test_text_alone_is_the_same_beside_images(llm: LLM) -> None:
    """In steps with images' states and in steps without."""
    params = greedy(12, logprobs=0)
    alone, beside = (
        llm.generate([request(PROMPTS[i]) for i in indices], params, use_tqdm=False)[0].outputs[0]
        for indices in ((0,), (0, 3))
    )
    assert alone.token_ids == beside.token_ids
    assert alone.cumulative_logprob == pytest.approx(beside.cumulative_logprob, abs=1e-4)


def test_equal_images_are_encoded_once(llm: LLM) -> None:
    """Also behind other text."""
    llm.engine.reset_prefix_cache()
    runs: list[int] = []
    tower: Any = llm.engine.runner.model.model.vision_model  # type: ignore[union-attr]
    hook = tower.register_forward_hook(lambda *_: runs.append(1))
    try:
        tokens_of(llm, [request((6, "one")), request(("two", 6, "three", 6))], [3, 3])
    finally:
        hook.remove()
    assert len(runs) == 1


@pytest.mark.parametrize("index", [0, 2, 5])
def test_log_probabilities(
    llm: LLM, processor: Any, reference: Any, expected: list[tuple[list[int], list[int]]], index: int
) -> None:
    """Log-probabilities of prompt and output are those of transformers' forward pass."""
    (output,) = llm.generate(request(PROMPTS[index]), greedy(8, logprobs=0, prompt_logprobs=0), use_tqdm=False)
    prompt, made = expected[index]
    tokens = [*prompt, *made[:8]]
    inputs = inputs_of(processor, PROMPTS[index])
    mask = inputs["image_attention_mask"]
    mask = torch.cat([mask, mask[:, -1:].expand(-1, 8, -1)], dim=1)
    with torch.inference_mode():
        logits = reference(
            input_ids=torch.tensor([tokens]), pixel_values=inputs["pixel_values"], image_attention_mask=mask
        ).logits[0]
    wanted = torch.log_softmax(logits[:-1], -1)[torch.arange(len(tokens) - 1), tokens[1:]]
    assert output.prompt_logprobs is not None
    assert output.outputs[0].logprobs is not None
    places = [*output.prompt_logprobs, *output.outputs[0].logprobs][1:]
    got = [place[token].logprob for place, token in zip(places, tokens[1:], strict=True) if place is not None]
    assert got == pytest.approx(wanted.tolist(), abs=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(checkpoint: Path, processor: Any, reference: Any, dtype: str) -> None:
    """The first token's log-probability is the one in float32, nearly."""
    with LLM(str(checkpoint), dtype=dtype) as llm:
        (output,) = llm.generate(request(PROMPTS[1]), greedy(1, logprobs=0), use_tqdm=False)
    with torch.inference_mode():
        logits = reference(**inputs_of(processor, PROMPTS[1])).logits[0, -1]
    (token,) = output.outputs[0].token_ids
    assert output.outputs[0].logprobs is not None
    got = output.outputs[0].logprobs[0][token].logprob
    assert got == pytest.approx(torch.log_softmax(logits, -1)[token].item(), abs=0.3)


def test_tables_of_the_vocabulary_are_one(llm: LLM, reference: Any) -> None:
    """Tokens around images can be embedded and made, as with the two tables of the checkpoint."""
    model: Any = llm.engine.runner.model
    tokens = torch.arange(model.config.vocab_size + model.config.additional_vocab_size)
    with torch.inference_mode():
        assert torch.equal(model.model.embed_tokens(tokens), reference.model.embed_tokens(tokens))
        hidden = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(model.lm_head(hidden), reference.lm_head(hidden), atol=1e-5)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_layers_of_images_have_no_memory_of_their_own(llm: LLM) -> None:
    """Their states' keys and values lie in layers of text, in blocks of their own."""
    assert list(llm.engine.runner.kv_cache.layers) == [0, 1, 2, 3]


def test_no_room_for_states(checkpoint: Path) -> None:
    """A cache that holds the prompt's tokens, and not the states besides: refused with the numbers; text runs."""
    with LLM(str(checkpoint), dtype="float32", num_kv_blocks=2, max_model_len=32) as llm:
        image, text = llm.generate(
            [request(PROMPTS[3]), request(PROMPTS[0])], greedy(2), use_tqdm=False, on_error="return"
        )
    assert isinstance(image.error, PromptTooLongError)
    assert "15 states" in str(image.error)
    assert text.error is None


def test_sizes(llm: LLM, checkpoint: Path, processor: Any, reference: Any) -> None:
    """Smaller images by request, larger ones by the operator alone, at transformers' tokens; none below a patch."""
    process = llm.engine.input_processor.process
    with pytest.raises(ProcessorKwargsError, match=r"of a request is above"):
        process(request(PROMPTS[1], size={"height": 64, "width": 64}))
    with pytest.raises(ProcessorKwargsError, match=r"48 x 4 pixels, and the tower takes patches of 8 x 8"):
        process(request(PROMPTS[1], size={"height": 4, "width": 48}))
    larger = {"size": {"height": 64, "width": 48}}
    with LLM(str(checkpoint), dtype="float32", mm_processor_kwargs=larger) as planned:
        got = tokens_of(planned, [request(PROMPTS[1])], [6])
    inputs = processor(text=[[image_of(0), PROMPTS[1][1]]], return_tensors="pt", **larger)
    made = reference.generate(
        **inputs, interpolate_pos_encoding=True, max_new_tokens=6, min_new_tokens=6, do_sample=False
    )[0].tolist()
    assert got == [(made[:-6], made[-6:])]


@pytest.mark.parametrize("name", ["do_resize", "image_size", "transform", "add_eos_token"])
def test_arguments_without_effect_are_refused(llm: LLM, name: str) -> None:
    """By name, with what to do instead."""
    with pytest.raises(ProcessorKwargsError, match=f"mm_processor_kwargs: {name}: "):
        llm.engine.input_processor.process(request(PROMPTS[1], **{name: None}))


def test_what_it_does_not_take(checkpoint: Path, llm: LLM) -> None:
    """A quantized cache, embeddings as wide as the tower, images without a place or above the operator's number."""
    with pytest.raises(ConfigError, match="kv_cache_dtype='int8'"):
        LLM(str(checkpoint), dtype="float32", kv_cache_dtype="int8")
    process = llm.engine.input_processor.process
    with pytest.raises(EmbeddingInputError, match="expected the model's hidden size 64, got 48"):
        process({"prompt": f"{IMAGE}?", "multi_modal_data": {"image_embeds": torch.zeros(1, STATES, 48)}})
    with pytest.raises(MissingPlaceholderError):
        process({"prompt": "?", "multi_modal_data": {"image": [image_of(0)]}})
    with LLM(str(checkpoint), dtype="float32", limit_mm_per_prompt={"image": 1}) as limited:
        (output,) = limited.generate(request(PROMPTS[4]), greedy(1), use_tqdm=False, on_error="return")
    assert isinstance(output.error, ItemLimitError)


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    """Refused at load, with what is wrong: a tower wider than the decoder, a tokenizer without marks."""
    wide = make_tiny_checkpoint(tmp_path / "wide", tower_size=96)
    with pytest.raises(CheckpointError, match=r"embed_dim of the vision tower is 96, and hidden_size .* 64"):
        LLM(str(wide))
    unmarked = make_tiny_checkpoint(tmp_path / "unmarked")
    for file in unmarked.glob("tokenizer*.json"):
        file.write_text(json.dumps(json.loads(file.read_text())).replace(MARK, "<other>"))
    with pytest.raises(CheckpointError, match=f"the tokenizer does not know {MARK}"):
        LLM(str(unmarked))

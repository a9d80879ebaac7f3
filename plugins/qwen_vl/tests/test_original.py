"""The original Qwen-VL's processing: the published layout of tokens, the published pixels, the family's conversations.

The oracle is `corellm_qwen_vl.original.reference`, which shares nothing with the plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import (
    AlreadyExpandedError,
    MissingPlaceholderError,
    ProcessorKwargsError,
    PromptError,
    SurplusPlaceholderError,
    UnsupportedModalityError,
)
from corellm_qwen_vl.original.reference import PlainQwenVL, PlainTokenizer, pixels
from corellm_qwen_vl.original.tiny import make_tiny_checkpoint


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A chat checkpoint with the published 256 tokens per image."""
    with LLM(str(make_tiny_checkpoint(tmp_path_factory.mktemp("qwen"))), dtype="float32") as model:
        yield model


@pytest.fixture(scope="module")
def reference(llm: LLM) -> PlainTokenizer:
    return PlainTokenizer(llm.engine.context.model_path)


def make_image(width: int, height: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def process(llm: LLM, prompt: Any, *images: Image.Image) -> Any:
    fields = {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": prompt}
    return llm.engine.input_processor.process({**fields, "multi_modal_data": {"image": list(images)} if images else {}})


# --- tokens and pixels ----------------------------------------------------------------------------------------------

sizes = st.tuples(st.integers(1, 200), st.integers(1, 200), st.integers(0, 1000))
words = st.text(st.characters(codec="utf-8", exclude_characters="<\u0338", exclude_categories=["Cs"]), max_size=12)
between = st.sampled_from(["", "/a/path.jpg", "https://example.org/ä?b=c", "x" * 300])


@given(parts=st.lists(st.one_of(words, st.tuples(between, sizes)), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_published_layout(llm: LLM, reference: PlainTokenizer, parts: list[Any]) -> None:
    """Random text, paths and images: `<img>`, 256 places, `</img>`; our processor and the engine give the same."""
    text = "x" + "".join(part if isinstance(part, str) else f"<img>{part[0]}</img>" for part in parts)
    images = [make_image(*part[1]) for part in parts if not isinstance(part, str)]
    ids = reference.encode_prompt(text, 256)
    start = reference.specials["<img>"]
    processor = llm.engine.context.hf_processor
    want = processor(text=text, images=images or None, return_tensors="pt")
    assert want["input_ids"][0].tolist() == ids
    for prompt in (text, processor.tokenizer(text)["input_ids"]):
        got = process(llm, prompt, *images)
        assert got.token_ids == ids
        assert [feature.placeholder.offset for feature in got.features] == [i for i, t in enumerate(ids) if t == start]
        for i, feature in enumerate(got.features):
            assert feature.placeholder.length == 258
            assert feature.placeholder.is_embed == (False, *[True] * 256, False)
            assert torch.equal(feature.data["pixel_values"].data, want["pixel_values"][i])
            assert torch.equal(feature.data["pixel_values"].data, pixels(images[i], 112))


def test_prompts_of_the_familys_tokenizer(llm: LLM, reference: PlainTokenizer) -> None:
    """Its token ids, where an image's path is bytes padded to 256, are taken as they are."""
    start, end, pad = (reference.specials[token] for token in ("<img>", "</img>", "<imgpad>"))
    path = list(b"/some/where.jpg")
    ids = [
        *reference.encode("Picture 1: "),
        start,
        *path,
        *[pad] * (256 - len(path)),
        end,
        *reference.encode("\nWhat?"),
    ]
    got = process(llm, ids, make_image(30, 40, 1))
    assert got.token_ids == reference.encode_prompt("Picture 1: <img></img>\nWhat?", 256)


@pytest.mark.parametrize(
    ("prompt", "count", "error", "words"),
    [
        ("an image?", 1, MissingPlaceholderError, "0 placeholders"),
        ("<img></img>", 2, MissingPlaceholderError, "1 placeholder"),
        ("<img>a</img><img>b</img>", 1, SurplusPlaceholderError, "2 placeholders"),
        ("<img></img>", 0, SurplusPlaceholderError, "<imgpad>"),
        ("<imgpad>", 0, SurplusPlaceholderError, "<imgpad>"),
        ("<img>" + "<imgpad>" * 256 + "</img>", 1, AlreadyExpandedError, "258"),
        ("<img>/a.jpg what?", 1, PromptError, "not closed"),
        ("<img>/a.jpg <img></img>", 1, PromptError, "position 0"),
    ],
)
def test_wrong_prompts(llm: LLM, prompt: str, count: int, error: type[Exception], words: str) -> None:
    """Each with its own error; no image is bound by guessing."""
    with pytest.raises(error, match=words):
        process(llm, prompt, *[make_image(20, 20, i) for i in range(count)])


def test_no_processor_arguments(llm: LLM) -> None:
    """The preprocessing has no arguments."""
    prompt = {
        "prompt": "<img></img>",
        "multi_modal_data": {"image": make_image(9, 9, 1)},
        "mm_processor_kwargs": {"x": 1},
    }
    with pytest.raises(ProcessorKwargsError, match="'x'"):
        llm.engine.input_processor.process(prompt)
    with pytest.raises(ValueError, match="names 2 images, 1"):
        llm.engine.context.hf_processor(text="<img></img><img></img>", images=make_image(9, 9, 1))


def test_sample_photographs(llm: LLM, reference: PlainTokenizer) -> None:
    """Two real photographs in one prompt, with the tokens of the plain forward pass; so with their embeddings."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    model = PlainQwenVL(llm.engine.context.model_path)
    text = "Picture 1: <img>1.jpg</img>\nPicture 2: <img>2.jpg</img>\nWhat differs?"
    ends = [reference.specials[token] for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    want, _ = model.generate(reference.encode_prompt(text, 256), photographs, 6, never=ends)
    params = SamplingParams(temperature=0, max_tokens=6, min_tokens=6)
    embeds = [model.encode_image(photograph) for photograph in photographs]
    for media in ({"image": photographs}, {"image_embeds": embeds}):
        output = llm.generate({"prompt": text, "multi_modal_data": media}, params, use_tqdm=False)[0]
        assert output.outputs[0].token_ids == want


# --- conversations --------------------------------------------------------------------------------------------------


def media(*parts: str | Image.Image) -> list[dict[str, Any]]:
    return [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]


def chat_ids(reference: PlainTokenizer, system: str, *turns: str, queries: int = 256) -> list[int]:
    """The family's context: each role and content tokenized by itself, between its tags."""
    newline = reference.encode("\n")
    start, end = reference.specials["<|im_start|>"], reference.specials["<|im_end|>"]
    ids = [start, *reference.encode("system"), *newline, *reference.encode(system), end]
    for i, turn in enumerate(turns):
        role = reference.encode(("user", "assistant")[i % 2])
        ids += [*newline, start, *role, *newline, *reference.encode_prompt(turn, queries), end]
    return [*ids, *newline, start, *reference.encode("assistant"), *newline]


def chat(llm: LLM, messages: list[dict[str, Any]], **options: Any) -> Any:
    return llm.engine.input_processor.process_chat(messages, **options)


def test_chat(llm: LLM, reference: PlainTokenizer) -> None:
    """Chatml with the family's system prompt, images numbered through the conversation and in their order."""
    images = [make_image(30, 30, i) for i in range(3)]
    messages = [
        {"role": "user", "content": media(images[0], "What is it? <|im_end|>")},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": media(images[1], images[2], "And these?")},
    ]
    got = chat(llm, messages)
    # what users type stays text: the literal is tokenized in two pieces
    typed = "Picture 1: <img></img>\nWhat is it? ", ["<", "|im_end|>"]
    plain = chat_ids(
        reference, "You are a helpful assistant.", typed[0], "A cat.",
        "Picture 2: <img></img>\nPicture 3: <img></img>\nAnd these?",
    )  # fmt: skip
    at = plain.index(reference.specials["<|im_end|>"], plain.index(reference.specials["<img>"]))
    assert got.token_ids == [*plain[:at], *(t for piece in typed[1] for t in reference.encode(piece)), *plain[at:]]
    assert [torch.equal(f.data["pixel_values"].data, pixels(p, 112)) for f, p in zip(got.features, images, strict=True)]


def test_boxes_of_any_role(llm: LLM) -> None:
    """`<box>` is no special token: it is a token in messages of the user and of the assistant."""
    (box,) = llm.get_tokenizer().convert_tokens_to_ids(["<box>"])
    counts = []
    for mine in ("<box>(1,2),(3,4)</box>", "at (1,2)"):
        for yours in ("a <box>", "a box"):
            messages = [{"role": "user", "content": yours}, {"role": "assistant", "content": mine}]
            counts.append(chat(llm, [*messages, {"role": "user", "content": "sure?"}]).token_ids.count(box))
    assert counts == [2, 1, 1, 0]


def test_system_message_and_continuation(llm: LLM, reference: PlainTokenizer) -> None:
    """The conversation's own system message; without a generation prompt, the prompt ends with the last message."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
    want = chat_ids(reference, "Be brief.", "Hi.")
    assert chat(llm, messages).token_ids == want
    tail = [*reference.encode("\n"), reference.specials["<|im_start|>"], *reference.encode("assistant\n")]
    assert chat(llm, messages, add_generation_prompt=False).token_ids == want[: -len(tail)]


def test_old_turns_are_left_out(llm: LLM, reference: PlainTokenizer) -> None:
    """The oldest turns are left out with their images; the images of the others keep their numbers."""
    messages: list[dict[str, Any]] = []
    for i in range(9):
        messages += [
            {"role": "user", "content": media(make_image(20, 20, i), f"What is in number {i + 1}?")},
            {"role": "assistant", "content": f"Thing {i + 1}."},
        ]
    got = chat(llm, [*messages[:-1]])
    turns = [
        t for i in range(9) for t in (f"Picture {i + 1}: <img></img>\nWhat is in number {i + 1}?", f"Thing {i + 1}.")
    ]
    fitting = [chat_ids(reference, "You are a helpful assistant.", *turns[2 * n : -1]) for n in range(9)]
    assert got.token_ids == next(ids for ids in fitting if len(ids) < 2048)
    assert 5 < len(got.features) < 9
    assert torch.equal(got.features[-1].data["pixel_values"].data, pixels(make_image(20, 20, 8), 112))


def test_chat_refusals(llm: LLM) -> None:
    """Roles and media the family does not have."""
    with pytest.raises(PromptError, match="'tool'"):
        chat(llm, [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}])
    with pytest.raises(UnsupportedModalityError, match="no video"):
        chat(llm, [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}])


def test_where_output_ends(tmp_path: Path, llm: LLM, reference: PlainTokenizer) -> None:
    """At the stop tokens of the family's `chat`; for the checkpoint that is not for chat, at the end of text."""
    raw = make_tiny_checkpoint(tmp_path, n_queries=16, chat_format="raw")
    with LLM(str(raw), dtype="float32") as base:
        for token, ends_raw in (
            ("<|endoftext|>", True),
            ("<|im_start|>", False),
            ("<|im_end|>", False),
            ("<ref>", None),
        ):
            params = SamplingParams(temperature=0, max_tokens=3, logit_bias={reference.specials[token]: 100})
            for model, ends in ((llm, ends_raw is not None), (base, bool(ends_raw))):
                output = model.generate("What?", params, use_tqdm=False)[0].outputs[0]
                assert output.finish_reason == ("stop" if ends else "length"), token
                assert output.text == ("<ref>" * 3 if token == "<ref>" else "")


def test_base_model_in_a_conversation(tmp_path: Path) -> None:
    """The checkpoint that is not for chat gets plain lines instead of chatml. In bfloat16, as published."""
    with LLM(str(make_tiny_checkpoint(tmp_path, n_queries=16, chat_format="raw")), dtype="bfloat16") as base:
        messages = [{"role": "user", "content": media(make_image(9, 9, 1), "What is it?")}]
        assert chat(base, messages).text == "USER: Picture 1: <img></img>\nWhat is it?\nASSISTANT:"
        assert base.chat(messages, SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)[0].finished


def test_operators_template_has_priority(llm: LLM) -> None:
    """A chat template given at the call replaces chatml; images are placed and numbered all the same."""
    template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    got = chat(llm, [{"role": "user", "content": media(make_image(9, 9, 1), "?")}], chat_template=template)
    assert got.text == "[Picture 1: <img></img>\n?]"


def test_sequences_end_where_the_family_rescales(llm: LLM) -> None:
    """`seq_length` is the limit, not the larger `max_position_embeddings`."""
    assert llm.engine.context.hf_config.get_text_config().max_position_embeddings == 2048
    text = "x " * 3000
    with pytest.raises(PromptError, match="2048"):
        llm.generate(text, use_tqdm=False)

"""What is BLIP-2's own: bounds of sizes, captions, conversations, and checkpoints that it cannot serve."""

from __future__ import annotations

import json
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
    EmbeddingCountError,
    ProcessorKwargsError,
    UnsupportedModalityError,
)
from corellm_blip2.tiny import make_tiny_checkpoint

QUERIES = 8
GREEDY = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("blip2"))


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
    return transformers.Blip2ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()


def make_image(width: int = 40, height: int = 30, seed: int = 1) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def tokens(llm: LLM, prompt: Any) -> list[int]:
    """Greedy output."""
    return llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON object; None removes one."""
    stored = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in stored.items() if value is not None}))


# --- processing -------------------------------------------------------------------------------------------------------


def test_image_tokens_before_bos(llm: LLM, processor: Any) -> None:
    """The layout, written out."""
    got = llm.engine.input_processor.process({"prompt": "yes", "multi_modal_data": {"image": make_image()}})
    tokenizer = processor.tokenizer
    assert tokenizer.convert_ids_to_tokens(got.token_ids)[: QUERIES + 1] == ["<image>"] * QUERIES + ["</s>"]
    assert tokenizer.decode(got.token_ids[QUERIES + 1 :]) == "yes"


@pytest.mark.parametrize("size", [{"height": 84, "width": 112}, {"height": 56, "width": 57}, 5000, [9, 999], {"a": 99}])
def test_a_request_cannot_ask_for_more_than_was_planned(llm: LLM, size: Any) -> None:
    """Refused before the processor is called; with it given at start, requests have it."""
    prompt = {"prompt": "", "multi_modal_data": {"image": make_image()}, "mm_processor_kwargs": {"size": size}}
    with pytest.raises(ProcessorKwargsError, match=r"image 0: .*size .*\{'height': 56, 'width': 56\}"):
        llm.engine.input_processor.process(prompt)


def test_more_can_be_planned_at_start(tmp_path: Path) -> None:
    """Then every image has it, and a request may ask for less."""
    size = {"height": 84, "width": 112}
    prompt = {"prompt": "", "multi_modal_data": {"image": make_image()}}
    with LLM(str(make_tiny_checkpoint(tmp_path)), mm_processor_kwargs={"size": size}) as llm:
        process = llm.engine.input_processor.process
        assert process(prompt).features[0].data["pixel_values"].data.shape == (3, 84, 112)
        less = {**prompt, "mm_processor_kwargs": {"size": {"height": 28, "width": 56}}}
        assert process(less).features[0].data["pixel_values"].data.shape == (3, 28, 56)
        assert llm.generate([prompt], SamplingParams(max_tokens=2), use_tqdm=False)[0].outputs[0].token_ids


# --- output -----------------------------------------------------------------------------------------------------------


def test_empty_prompt_captions(llm: LLM, processor: Any, reference: Any) -> None:
    """Without a prompt, in a chat too, the tokens are transformers' for pixels alone."""
    pixels = processor(images=make_image(), return_tensors="pt")["pixel_values"]
    want = reference.generate(pixels, max_new_tokens=8, min_new_tokens=8, do_sample=False)[0, -8:].tolist()
    assert tokens(llm, {"prompt": "", "multi_modal_data": {"image": make_image()}}) == want
    message = {"role": "user", "content": [{"type": "image", "image": make_image()}]}
    assert llm.chat([message], GREEDY, use_tqdm=False)[0].outputs[0].token_ids == want


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(checkpoint: Path, reference: Any, processor: Any, dtype: str) -> None:
    """The Q-Former, which transformers keeps in float32 beside float16, takes and gives the model's type."""
    with LLM(str(checkpoint), dtype=dtype) as llm:
        prompt = {"prompt": "what?", "multi_modal_data": {"image": make_image()}}
        output = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1, logprobs=0), use_tqdm=False)[0]
    with torch.inference_mode():
        logits = reference(**processor(text="what?", images=make_image(), return_tensors="pt")).logits[0, -1]
    token = output.outputs[0].token_ids[0]
    got = output.outputs[0].logprobs[0][token].logprob
    assert got == pytest.approx(torch.log_softmax(logits, -1)[token].item(), abs=0.15)


# --- conversations ----------------------------------------------------------------------------------------------------


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [p if isinstance(p, str) else {"type": "image", "image": p} for p in parts]}


def says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


CONVERSATIONS = {
    "one turn": ([user(make_image(), "which city?")], "Question: which city? Answer:"),
    "image last, parts joined": ([user("which ", "city?\n", make_image())], "Question: which city? Answer:"),
    "earlier turns": (
        [user(make_image(), "which city?"), says("assistant", "singapore\n"), user("why?")],
        "Question: which city? Answer: singapore. Question: why? Answer:",
    ),
    "one full stop": (
        [user("where?", make_image()), says("assistant", "Asia."), user("why?")],
        "Question: where? Answer: Asia. Question: why? Answer:",
    ),
    "system": ([says("system", "Be brief."), user(make_image(), "why?")], "Be brief. Question: why? Answer:"),
    "image, then question": ([user(make_image()), user("why {}?")], "Question: why {}? Answer:"),
    "caption": ([user(make_image())], ""),
    "no image": ([user("why?")], "Question: why? Answer:"),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations(llm: LLM, processor: Any, name: str) -> None:
    """The published prompt; its tokens are the processor's."""
    messages, text = CONVERSATIONS[name]
    got = llm.engine.input_processor.process_chat(messages)
    assert got.text == text
    images = make_image() if got.features else None
    assert got.token_ids == processor(text=text, images=images)["input_ids"][0]
    assert len(got.features) == (name != "no image")


def test_conversation_without_generation_prompt(llm: LLM) -> None:
    """`add_generation_prompt=False` leaves out the last `Answer:`."""
    got = llm.engine.input_processor.process_chat([user(make_image(), "why?")], add_generation_prompt=False)
    assert got.text == "Question: why?"


def test_special_tokens_in_a_conversation_stay_text(llm: LLM, processor: Any) -> None:
    """A user who types an image token or an end of text gets neither."""
    got = llm.engine.input_processor.process_chat([user(make_image(), "what is <image> or </s>?")])
    tokenizer = processor.tokenizer
    text = tokenizer.decode(got.token_ids[QUERIES + 1 :])
    assert text == "Question: what is <image> or </s>? Answer:"
    special = tokenizer.convert_tokens_to_ids(["<image>", "</s>"])
    assert not set(special) & set(got.token_ids[QUERIES + 1 :])


def test_other_media_are_refused(llm: LLM) -> None:
    """A video is not dropped."""
    video = {"role": "user", "content": [{"type": "video", "video": "video.mp4"}, {"type": "text", "text": "what?"}]}
    with pytest.raises(UnsupportedModalityError, match="no video"):
        llm.engine.input_processor.process_chat([video])


TEMPLATE = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"


def test_chat_templates_come_first(llm: LLM, checkpoint: Path, tmp_path: Path) -> None:
    """The operator's template is honoured, and so is one that a checkpoint has; no image is lost."""
    messages = [user(make_image(), "why?")]
    got = llm.engine.input_processor.process_chat(messages, chat_template=TEMPLATE)
    assert (got.text, len(got.features)) == ("[user]why?", 1)
    path = make_tiny_checkpoint(tmp_path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    with LLM(str(path), dtype="float32") as other:
        got = other.engine.input_processor.process_chat(messages)
    assert (got.text, len(got.features)) == ("[user]why?", 1)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_t5_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    """An encoder-decoder: the error says so and what to do."""
    path = make_tiny_checkpoint(tmp_path, text="t5")
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="'t5'"):
        LLM(str(path))


def test_checkpoint_from_before_the_image_token(llm: LLM, tmp_path: Path) -> None:
    """Neither tokenizer, processor nor configuration knows the image: refused, and served once the advice is taken."""
    path = make_tiny_checkpoint(tmp_path)
    added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    edit(path / "tokenizer.json", added_tokens=[token for token in added if token["content"] != "<image>"])
    edit(path / "processor_config.json", num_query_tokens=None)
    edit(path / "config.json", image_token_index=None)
    with pytest.raises(CheckpointError, match='"image_token_index": 400'):
        LLM(str(path))
    edit(path / "config.json", image_token_index=400)
    prompt = {"prompt": "what?", "multi_modal_data": {"image": make_image()}}
    with LLM(str(path), dtype="float32") as old:
        assert tokens(old, prompt) == tokens(llm, prompt)
        assert old.chat([user(make_image(), "why <image>?")], GREEDY, use_tqdm=False)[0].finished


def test_processor_and_model_that_disagree(tmp_path: Path) -> None:
    """A number of queries that is not the model's is refused, with both numbers."""
    path = make_tiny_checkpoint(tmp_path)
    edit(path / "processor_config.json", num_query_tokens=4)
    with pytest.raises(CheckpointError, match=r"\b4 .* 8 in config\.json"):
        LLM(str(path))


def test_projected_word_embeddings_are_refused(tmp_path: Path) -> None:
    """OPT with word embeddings of another width (its 350M): the Q-Former's output has another width.

    Transformers builds such a model and truncates the embeddings.
    """
    path = make_tiny_checkpoint(tmp_path)
    config = transformers.AutoConfig.from_pretrained(path)
    config.text_config.word_embed_proj_dim = 32
    transformers.Blip2ForConditionalGeneration(config).save_pretrained(path)
    with pytest.raises(EmbeddingCountError, match="width 64, not 32"):
        LLM(str(path))

"""What is Chameleon's own: tokens around images and behind prompts, codes, what is never generated."""

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
from corellm.errors import CheckpointError, ProcessorKwargsError
from corellm_chameleon.tiny import make_tiny_checkpoint

CODES = 16
SEP = "<reserved08706>"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("chameleon"))


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
    """The oracle of codes."""
    return transformers.ChameleonForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()


def make_image(width: int = 40, height: int = 30, seed: int = 1) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_tokens_around_an_image(llm: LLM, processor: Any) -> None:
    """The layout, written out: begin, codes, end, and the end of the turn behind all of it."""
    prompt = {"prompt": "yes<image>no", "multi_modal_data": {"image": make_image()}}
    got = llm.engine.input_processor.process(prompt)
    tokenizer = processor.tokenizer
    yes, no = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("yes", "no"))
    begin, image, end, sep = tokenizer.convert_tokens_to_ids(["<racm3:break>", "<image>", "<eoss>", SEP])
    assert got.token_ids == [tokenizer.bos_token_id, *yes, begin, *[image] * CODES, end, *no, sep]
    assert got.features[0].placeholder.num_embeds == CODES


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m['content'] }}" + SEP + "{% endfor %}"])
def test_a_conversation_ends_once(llm: LLM, template: str | None) -> None:
    """By a chat template and without one, every turn has its one end; text alone gets it, too."""
    turns = [("user", "What?"), ("assistant", "A circle"), ("user", "Why?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    chat = llm.engine.input_processor.process_chat(messages, chat_template=template)
    sep = llm.get_tokenizer().convert_tokens_to_ids(SEP)
    assert chat.token_ids.count(sep) == 3
    assert chat.token_ids[-1] == sep
    alone = llm.engine.input_processor.process(f"What?{SEP}A circle{SEP}Why?")
    assert alone.token_ids == chat.token_ids


# --- codes ------------------------------------------------------------------------------------------------------------


def test_embeddings_of_an_image_are_those_of_its_codes(llm: LLM, processor: Any, reference: Any) -> None:
    """An image's codes, written as text into the prompt, give the same output as the image."""
    image = make_image(seed=3)
    pixels = processor(images=image, text="<image>", return_tensors="pt")["pixel_values"]
    codes = reference.get_image_tokens(pixels)[0].tolist()
    assert len(set(codes)) > CODES // 3
    params = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)
    prompt = {"prompt": "What<image>is it?", "multi_modal_data": {"image": image}}
    whole = llm.engine.input_processor.process(prompt).token_ids
    token = processor.image_token_id
    first = whole.index(token)
    written = [*whole[:first], *codes, *whole[first + CODES :]]
    outputs = llm.generate([prompt, {"prompt_token_ids": written}], params, use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids


def test_codes_are_never_generated(llm: LLM, reference: Any) -> None:
    """However much a request wants them; the token that begins an image ends the output."""
    code = reference.model.vocabulary_mapping.image_tokens[5]
    begin = llm.get_tokenizer().convert_tokens_to_ids("<racm3:break>")
    wanted = SamplingParams(temperature=0, max_tokens=6, min_tokens=6, logit_bias={code: 100})
    (output,) = llm.generate("Draw.", wanted, use_tqdm=False)
    assert not {*output.outputs[0].token_ids} & {*reference.model.vocabulary_mapping.image_tokens}
    (ended,) = llm.generate("Draw.", SamplingParams(max_tokens=6, logit_bias={begin: 100}), use_tqdm=False)
    assert (len(ended.outputs[0].token_ids), ended.outputs[0].finish_reason) == (1, "stop")


# --- what cannot be served --------------------------------------------------------------------------------------------


def test_another_size_is_refused_by_name(llm: LLM) -> None:
    """With the tokens it would become; a shape with as many tokens is taken."""
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": make_image()}}
    small, flat = ({"crop_size": {"height": 8, "width": width}} for width in (8, 32))
    with pytest.raises(ProcessorKwargsError, match=r"8 x 8 pixels .*4 tokens .*16"):
        llm.engine.input_processor.process({**prompt, "mm_processor_kwargs": small})
    (output,) = llm.generate({**prompt, "mm_processor_kwargs": flat}, SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.finished


def test_a_processor_of_another_model_is_refused(tmp_path: Path) -> None:
    """Before weights are read."""
    path = make_tiny_checkpoint(tmp_path, stated_tokens=9)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"image_seq_length is 9, .* 16 tokens"):
        LLM(str(path))


def test_stated_ends_are_kept(tmp_path: Path) -> None:
    """End tokens of the checkpoint's generation_config.json end an output, too."""
    path = make_tiny_checkpoint(tmp_path)
    stated = json.loads((path / "generation_config.json").read_text()) | {"eos_token_id": [300, 301]}
    (path / "generation_config.json").write_text(json.dumps(stated))
    with LLM(str(path), dtype="float32") as llm:
        (output,) = llm.generate("a", SamplingParams(max_tokens=6, logit_bias={301: 100}), use_tqdm=False)
    assert (output.outputs[0].finish_reason, len(output.outputs[0].token_ids)) == ("stop", 1)

"""What is InstructBLIP's own: the Q-Former reads the prompt, in whatever form it comes, and caches know of it."""

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
from corellm.errors import CheckpointError, ItemNotCachedError, ProcessorKwargsError, PromptTooLongError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.multimodal.fields import join_items
from corellm_blip2.instruct.tiny import make_tiny_checkpoint

WHAT, WHERE = "What is unusual about this image?", "where?"
GREEDY = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("instruct"))


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
    return transformers.InstructBlipForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()


def make_image(seed: int = 1) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8))


def prompt_of(text: str, seed: int = 1, **more: Any) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"image": make_image(seed)}, **more}


def tokens(llm: LLM, *prompts: Any) -> list[list[int]]:
    """Greedy outputs of one batch."""
    return [output.outputs[0].token_ids for output in llm.generate(list(prompts), GREEDY, use_tqdm=False)]


def expected(processor: Any, reference: Any, text: str, seed: int = 1, **other: Any) -> list[int]:
    """Transformers' greedy tokens for a prompt with an image."""
    inputs = {**processor(images=make_image(seed), text=text, return_tensors="pt"), **other}
    output: list[int] = reference.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)[0].tolist()
    return output[-8:]


def process(llm: LLM, prompt: Any) -> ProcessedPrompt:
    return llm.engine.input_processor.process(prompt)


def read_by_the_qformer(processed: ProcessedPrompt, processor: Any) -> str:
    """The Q-Former's text, with its special tokens."""
    text: str = processor.qformer_tokenizer.decode(processed.features[0].data["qformer_input_ids"].data)
    return text


def embeddings(llm: LLM, *prompts: ProcessedPrompt) -> list[torch.Tensor]:
    """What the encoder makes of the images of these prompts, in one batch."""
    with torch.inference_mode():
        return list(
            llm.engine.input_processor.mm_processor.hooks.get_multimodal_embeddings(
                model=llm.engine.runner.model,
                modality="image",
                mm_kwargs=join_items([prompt.features[0].data for prompt in prompts]),
            )
        )


# --- one image, several questions ---------------------------------------------------------------------------------


def test_each_question_has_its_own_output(llm: LLM, processor: Any, reference: Any) -> None:
    """One image under several questions, in one batch and again from caches: transformers' tokens for each."""
    questions = (WHAT, WHERE, "", "Question: is it red? Short answer:")
    want = [expected(processor, reference, question) for question in questions]
    assert len(set(map(tuple, want))) == len(questions)
    for _ in range(2):
        assert tokens(llm, *map(prompt_of, questions)) == want


def test_the_qformer_is_what_makes_the_difference(llm: LLM) -> None:
    """Another question gives an image other embeddings, though nothing else of it changes."""
    one, other = (process(llm, prompt_of(question)) for question in (WHAT, WHERE))
    assert one.features[0].data["pixel_values"] == other.features[0].data["pixel_values"]
    first, second = embeddings(llm, one)[0], embeddings(llm, other)[0]
    assert first.shape == second.shape == (8, 64)
    assert (first - second).abs().max() > 0.01


def test_images_of_one_batch_do_not_know_of_each_other(llm: LLM) -> None:
    """With instructions of several lengths, the embeddings are bit for bit those of each image alone, in order."""
    prompts = [process(llm, prompt_of(text, seed)) for seed, text in enumerate((WHAT, WHERE, "Why?", WHERE, ""))]
    together = embeddings(llm, *prompts)
    assert all(torch.equal(part, embeddings(llm, prompt)[0]) for part, prompt in zip(together, prompts, strict=True))


def test_caches_know_the_question(checkpoint: Path) -> None:
    """Asked again, the prompt is found in the prefix cache; beside another question nothing of it is."""
    with LLM(str(checkpoint), dtype="float32", block_size=4) as llm:

        def cached(question: str) -> int:
            return llm.generate(prompt_of(question), GREEDY, use_tqdm=False)[0].num_cached_tokens

        assert [cached(WHAT), cached(WHERE)] == [0, 0]
        assert cached(WHAT) >= 8


def test_a_uuid_is_of_its_question(llm: LLM) -> None:
    """The id of an image alone gives its output with the same question, and is refused with another."""
    named = {"multi_modal_uuids": {"image": ["of one question"]}}
    sent = tokens(llm, prompt_of(WHAT, 7, **named))
    assert tokens(llm, {"prompt": WHAT, "multi_modal_data": {"image": None}, **named}) == sent
    with pytest.raises(ItemNotCachedError):
        process(llm, {"prompt": WHERE, "multi_modal_data": {"image": None}, **named})


# --- forms of a prompt ---------------------------------------------------------------------------------------------


def test_token_ids_are_read_as_text(llm: LLM, processor: Any) -> None:
    """With the tokenizer's first token or without, the Q-Former reads what it reads of the text."""
    ids = processor.tokenizer(WHAT)["input_ids"]
    with_text = process(llm, prompt_of(WHAT))
    for given in (ids, ids[1:]):
        processed = process(llm, {"prompt_token_ids": given, "multi_modal_data": {"image": make_image()}})
        assert processed.features[0].identifier == with_text.features[0].identifier


@pytest.mark.parametrize("parts", ["image first", "image last"])
def test_a_conversation_is_its_texts(llm: LLM, processor: Any, reference: Any, parts: str) -> None:
    """The output of a conversation's last turn is transformers' for all texts, line by line."""
    image, text = {"type": "image", "image": make_image()}, {"type": "text", "text": WHAT}
    messages = [
        {"role": "user", "content": [image, text] if parts == "image first" else [text, image]},
        {"role": "assistant", "content": "The man irons."},
        {"role": "user", "content": WHERE},
    ]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == expected(processor, reference, f"{WHAT}\nThe man irons.\n{WHERE}")


def test_special_tokens_that_users_type_are_text(llm: LLM, processor: Any) -> None:
    """Neither those of the text model nor those of the Q-Former become tokens of the Q-Former's."""
    content = [{"type": "image", "image": make_image()}, {"type": "text", "text": "what is <image> or </s> or [SEP]?"}]
    chat = llm.engine.input_processor.process_chat([{"role": "user", "content": content}])
    typed = process(llm, prompt_of("what is </s> or [SEP]?"))
    assert read_by_the_qformer(chat, processor) == "[CLS] what is < image > or < / s > or [ sep ]? [SEP]"
    assert read_by_the_qformer(typed, processor) == "[CLS] what is < / s > or [ sep ]? [SEP]"


def test_a_window_keeps_the_image(llm: LLM, processor: Any) -> None:
    """Turns that do not fit are left out before the Q-Former reads the prompt."""
    content = [{"type": "image", "image": make_image()}, {"type": "text", "text": WHERE}]
    earlier = [{"role": "user", "content": WHAT * 3}, {"role": "assistant", "content": "Nothing."}]
    messages = [*earlier, {"role": "user", "content": content}]
    processed = llm.engine.input_processor.process_chat(messages, max_window_size=24)
    assert processed.text == WHERE
    assert read_by_the_qformer(processed, processor) == "[CLS] where? [SEP]"


# --- another instruction than the prompt ---------------------------------------------------------------------------


def test_a_request_may_give_the_qformer_another_text(llm: LLM, processor: Any, reference: Any) -> None:
    """The output is transformers' for that instruction beside this prompt, and no other request's."""
    other = processor(text=WHERE, return_tensors="pt")
    given = {name: other[name] for name in ("qformer_input_ids", "qformer_attention_mask")}
    want = expected(processor, reference, WHAT, **given)
    assert want != expected(processor, reference, WHAT)
    asked = prompt_of(WHAT, mm_processor_kwargs={"qformer_text": WHERE})
    assert tokens(llm, asked, prompt_of(WHAT)) == [want, expected(processor, reference, WHAT)]


def test_a_long_prompt_needs_one(llm: LLM) -> None:
    """What the Q-Former has no positions for is refused with both numbers and the way out, which works."""
    long = "a " * 511
    with pytest.raises(PromptTooLongError, match=r"image 0: .* 513 tokens, and 512 at most; .*'qformer_text'"):
        process(llm, prompt_of(long))
    assert process(llm, prompt_of(long[:-2])).features
    assert process(llm, prompt_of(long, mm_processor_kwargs={"qformer_text": "a"})).features
    assert not process(llm, long).features


@pytest.mark.parametrize("wrong", [3, None, ["What?"]])
def test_an_instruction_is_text(llm: LLM, wrong: Any) -> None:
    with pytest.raises(ProcessorKwargsError, match=r"image 0: .*qformer_text must be text, got"):
        process(llm, prompt_of(WHAT, mm_processor_kwargs={"qformer_text": wrong}))


@pytest.mark.parametrize("kwargs", [{"colour": 1}, {"size": {"height": 84, "width": 84}}, {"image_mean": "red"}])
def test_wrong_arguments_are_refused(llm: LLM, kwargs: dict[str, Any]) -> None:
    """Unknown ones, a size above the planned one, and a value that the processor cannot use."""
    with pytest.raises(ProcessorKwargsError, match=f"image 0: mm_processor_kwargs: .*{next(iter(kwargs))}"):
        process(llm, prompt_of(WHAT, mm_processor_kwargs=kwargs))


def test_t5_is_refused_with_a_model_to_take(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'t5', an encoder-decoder, .*instructblip-vicuna-7b"):
        LLM(str(make_tiny_checkpoint(tmp_path, text="t5")))

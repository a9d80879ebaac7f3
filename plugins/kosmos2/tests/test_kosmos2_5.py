"""What is Kosmos-2.5's own: grids of patches, their padding and limits, segments, tokens that the processor writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.errors import (
    AlreadyExpandedError,
    ItemLimitError,
    MediaError,
    ProcessorKwargsError,
    SurplusPlaceholderError,
)
from corellm_kosmos2.kosmos2_5.contract import Kosmos2_5Reference
from corellm_kosmos2.kosmos2_5.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image

QUERIES, PATCHES = 8, 32
SIZES = [(40, 30), (30, 40), (120, 24), (24, 120), (64, 64), (300, 200)]
GRIDS = [(4, 6), (6, 4), (2, 12), (12, 2), (5, 5), (4, 6)]
"""Rows and columns of the sizes: as many of 8 pixels as the ratio allows of 32."""
TEXTS = (
    "<ocr>",
    "<md>",
    "<ocr>\n",
    " <md> ",
    "",
    "<md>A chat. USER: What is this? ASSISTANT:",
    "</s> what",
    "<image> what </image>",
    "日本",
    "what <s>",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with a padding token that is not the second one, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("kosmos2_5"), spare_tokens=3)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    """The checkpoint, loaded; its steps are so short that they divide an image's block."""
    with LLM(str(checkpoint), dtype="float32", max_num_batched_tokens=16) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Kosmos2_5Reference:
    """Transformers' processor and model."""
    return Kosmos2_5Reference(checkpoint)


def process(llm: LLM, text: Any, *images: Any, **kwargs: Any) -> Any:
    """Our processing of one request; `text` is text or token ids."""
    key = "prompt" if isinstance(text, str) else "prompt_token_ids"
    request = {key: text, "multi_modal_data": {"image": list(images)}, "mm_processor_kwargs": kwargs}
    return llm.engine.input_processor.process(request)


def patches_of(llm: LLM, image: Any, **kwargs: Any) -> torch.Tensor:
    """Our patches of an image, `[max_patches, 2 + values]`."""
    (feature,) = process(llm, "<ocr>", image, **kwargs).features
    patches: torch.Tensor = feature.data["flattened_patches"].data
    return patches


def theirs(reference: Kosmos2_5Reference, text: str, image: Any, max_patches: int = PATCHES) -> Any:
    """The processor's own output for a text and an image."""
    return reference.processor(text=text, images=image, return_tensors="pt", max_patches=max_patches)


# --- the prompt -------------------------------------------------------------------------------------------------------


def test_an_image_stands_behind_bos(llm: LLM) -> None:
    """The layout, written out: tokens of its own before and behind the embeddings."""
    got = process(llm, "<ocr>", make_image(40, 30, 1))
    tokens = llm.engine.context.tokenizer.convert_ids_to_tokens(got.token_ids)
    assert tokens == ["<s>", "<image>", *["<pad>"] * QUERIES, "</image>", "<ocr>"]
    (feature,) = got.features
    assert (feature.placeholder.offset, feature.placeholder.length) == (1, QUERIES + 2)
    assert feature.placeholder.is_embed == (False, *[True] * QUERIES, False)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_the_processors(llm: LLM, reference: Kosmos2_5Reference, text: str) -> None:
    """All but those that take embeddings, by its own mask."""
    image = make_image(40, 30, 1)
    want = theirs(reference, text, image)
    is_text = want["image_embeds_position_mask"][0] != 1
    for prompt in (text, llm.engine.context.tokenizer(text)["input_ids"]):
        got = torch.tensor(process(llm, prompt, image).token_ids)
        assert torch.equal(got[is_text], want["input_ids"][0][is_text])
        assert (got[~is_text] == llm.engine.context.tokenizer.pad_token_id).all()


def test_the_processors_tokens_of_an_image_are_refused(llm: LLM, reference: Kosmos2_5Reference) -> None:
    """Ids that the processor wrote for the image, with it and without: an image would come twice, or be BOS."""
    expanded = theirs(reference, "<ocr>", make_image(40, 30, 1))["input_ids"][0].tolist()
    for images in ([make_image(40, 30, 1)], []):
        with pytest.raises(AlreadyExpandedError, match=rf"{QUERIES + 2} tokens that Kosmos2_5Processor .*without them"):
            process(llm, expanded, *images)


def test_images_are_counted(llm: LLM) -> None:
    """The processor pairs a text with one image; what takes its embeddings stands for nothing else."""
    with pytest.raises(ItemLimitError, match="2 images"):
        process(llm, "<ocr>", make_image(40, 30, 1), make_image(40, 30, 2))
    with pytest.raises(SurplusPlaceholderError, match="<pad>"):
        process(llm, "<ocr><pad>")


def test_a_message_is_the_prompt(llm: LLM) -> None:
    """Tags of a conversation stay tags; what stands for an image or ends a text stays text."""
    image = {"type": "image", "image": make_image(40, 30, 1)}
    message = {"role": "user", "content": [image, {"type": "text", "text": "<md>"}]}
    got = llm.engine.input_processor.process_chat([message])
    assert got.token_ids == process(llm, "<md>", make_image(40, 30, 1)).token_ids
    typed = llm.engine.input_processor.process_chat([{"role": "user", "content": "<image> </s> <pad> </image>"}])
    tokens = llm.engine.context.tokenizer.convert_ids_to_tokens(typed.token_ids)
    assert not {"<image>", "</s>", "<pad>", "</image>"} & {*tokens}
    assert "".join(tokens).replace("Ġ", "") == "<s><image></s><pad></image>"


# --- an image ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "grid"), list(zip(SIZES, GRIDS, strict=True)))
def test_the_grid_follows_the_ratio(llm: LLM, size: tuple[int, int], grid: tuple[int, int]) -> None:
    """Rows and columns count from 1, row by row; behind the last patch there are zeros."""
    rows, columns = grid
    patches = patches_of(llm, make_image(*size, 1))
    assert patches.shape == (PATCHES, 2 + 3 * 8 * 8)
    places = [[row, column] for row in range(1, rows + 1) for column in range(1, columns + 1)]
    assert patches[: rows * columns, :2].tolist() == places
    assert not patches[rows * columns :].any()


def test_the_checkpoints_number_counts(llm: LLM, reference: Kosmos2_5Reference) -> None:
    """Transformers' processor overlooks it; told the same, it makes the same patches, also of a request's number."""
    image = make_image(50, 40, 3)
    assert reference.processor(text="<ocr>", images=image)["flattened_patches"].shape[1] == 4096
    for kwargs in ({}, {"max_patches": 13}):
        want = theirs(reference, "<ocr>", image, **kwargs)["flattened_patches"][0]
        assert torch.equal(patches_of(llm, image, **kwargs), want)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_patches": PATCHES + 1}, "max_patches 33 is more than 32, .*LLM"),
        ({"max_patches": 0}, "max_patches must be an integer of at least 1, got 0"),
        ({"max_patches": "12"}, "max_patches must be an integer of at least 1, got '12'"),
        ({"max_patches": 9.5}, "max_patches must be an integer of at least 1, got 9.5"),
        ({"size": {"height": 8, "width": 8}}, "size changes nothing: .* give that alone"),
        ({"patch_size": {"height": 16, "width": 16}}, "patch_size: .*one size; leave it out"),
        ({"do_normalize": False}, "do_normalize: .*leave it out"),
        ({"num_image_tokens": QUERIES}, "does not take 'num_image_tokens'"),
    ],
    ids=["more", "none", "a word", "a part", "size", "patch_size", "do_normalize", "num_image_tokens"],
)
def test_arguments_that_do_not_fit_are_refused(llm: LLM, kwargs: dict[str, Any], message: str) -> None:
    """With what is wrong; another request's are taken all the same."""
    with pytest.raises(ProcessorKwargsError, match=message):
        process(llm, "<ocr>", make_image(40, 30, 1), **kwargs)
    assert process(llm, "<ocr>", make_image(40, 30, 1)).features


def test_the_operators_number_is_planned_for(checkpoint: Path) -> None:
    """More than the checkpoint's or fewer: of all images, and at most for a request."""
    with LLM(str(checkpoint), mm_processor_kwargs={"max_patches": 50}) as llm:
        assert len(patches_of(llm, make_image(40, 30, 1))) == 50
        assert len(patches_of(llm, make_image(40, 30, 1), max_patches=49)) == 49
        with pytest.raises(ProcessorKwargsError, match="more than 50"):
            process(llm, "<ocr>", make_image(40, 30, 1), max_patches=51)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_and_columns_that_the_model_does_not_know_are_refused(tmp_path: Path, dtype: str) -> None:
    """As published, there are fewer than `max_patches`; a number that its type rounds to that is beyond them, too."""
    make_tiny_checkpoint(tmp_path, max_patches=300, max_num_patches=300)
    beyond = {"float32": 300, "bfloat16": 299}[dtype]
    with LLM(str(tmp_path), dtype=dtype) as llm:
        for size in [(8, 8 * beyond * beyond // 300 + 8), (8 * beyond * beyond // 300 + 8, 8)]:
            with pytest.raises(MediaError, match=r"pixels become .* fewer than 300 of each; crop") as refusal:
                process(llm, "<ocr>", make_image(*size, 1))
            assert refusal.value.got == beyond
        taken = make_image(8, 8 * 296 * 296 // 300 + 8, 1)
        (output,) = llm.generate({"prompt": "<ocr>", "multi_modal_data": {"image": taken}}, use_tqdm=False)
        assert output.outputs[0].token_ids


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["<ocr>", "<md>", "<image> what </image>"])
def test_pages_of_any_ratio_equal_transformers(llm: LLM, reference: Kosmos2_5Reference, text: str) -> None:
    """Several at once, their blocks in several steps; what stands around an image, but in a text, is of the text."""
    media = [{"image": [make_image(*size, seed)]} for seed, size in enumerate([*SIZES, SIZES[0]])]
    want = [reference.generate(text, one, {}, 12) for one in media]
    params = SamplingParams(temperature=0, max_tokens=12, min_tokens=12)
    outputs = llm.generate([{"prompt": text, "multi_modal_data": one} for one in media], params, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [one.prompt_token_ids for one in want]
    assert [output.outputs[0].token_ids for output in outputs] == [one.token_ids for one in want]
    assert len({tuple(one.token_ids) for one in want}) == len(media)


def test_queries_read_padding(llm: LLM, reference: Kosmos2_5Reference) -> None:
    """As in transformers: embeddings are its own, and a page in a larger frame of padding has others."""
    encoders = llm.engine.runner.encoders
    found = []
    for count in (24, PATCHES):  # 4 x 6 patches in both
        features = process(llm, "<ocr>", make_image(40, 30, 1), max_patches=count).features
        want = theirs(reference, "<ocr>", make_image(40, 30, 1), count)
        with torch.inference_mode():
            seen = reference.model.vision_model(flattened_patches=want["flattened_patches"]).last_hidden_state
            unit = torch.nn.functional.normalize(seen, dim=-1)
            embeddings = reference.model.image_to_text_projection(unit)[0][0]
        encoders.run(features)
        found.append(encoders.output(features[0]))
        encoders.drop([features[0].identifier])
        assert found[-1].shape == (QUERIES, 64)
        torch.testing.assert_close(found[-1], embeddings, atol=1e-4, rtol=1e-4)  # rounding; the frames are 1e-2 apart
    assert (found[0] - found[1]).abs().max() > 1e-2


def test_embeddings_stand_in_for_an_image(llm: LLM) -> None:
    """Those of its encoder give its output; they are not scaled, and of no segment yet."""
    image, encoders = make_image(40, 30, 1), llm.engine.runner.encoders
    features = process(llm, "<ocr>", image).features
    encoders.run(features)
    embeddings = encoders.output(features[0]).clone()
    encoders.drop([features[0].identifier])
    params = SamplingParams(temperature=0, max_tokens=12, min_tokens=12)
    items = [{"image": image}, {"image_embeds": [embeddings]}]
    prompts = [{"prompt": "<ocr>", "multi_modal_data": item} for item in items]
    of_image, of_embeddings = llm.generate(prompts, params, use_tqdm=False)
    assert of_image.outputs[0].token_ids == of_embeddings.outputs[0].token_ids


def test_a_page_of_many_patches_equals_transformers(tmp_path: Path) -> None:
    """A quarter of the published number of patches and queries: the largest image, and one that is scaled up."""
    make_tiny_checkpoint(tmp_path, max_patches=1024, max_num_patches=1024, latent_query_num=512)
    reference = Kosmos2_5Reference(tmp_path)
    media = [{"image": [make_image(*size, 1)]} for size in [(256, 256), (90, 130)]]
    params = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)
    with LLM(str(tmp_path), dtype="float32") as llm:
        assert patches_of(llm, media[0]["image"][0])[-1, :2].tolist() == [32, 32]
        outputs = llm.generate([{"prompt": "<md>", "multi_modal_data": one} for one in media], params, use_tqdm=False)
    want = [reference.generate("<md>", one, {}, 8).token_ids for one in media]
    assert [output.outputs[0].token_ids for output in outputs] == want
    assert want[0] != want[1]


def test_tags_are_part_of_the_output(llm: LLM) -> None:
    """They are no special tokens, which a text is without."""
    tags = ["<bbox>", "<x_7>"]
    ids = llm.engine.context.tokenizer.convert_tokens_to_ids(tags)
    params = SamplingParams(temperature=0, max_tokens=3, min_tokens=3, allowed_token_ids=ids)
    (output,) = llm.generate({"prompt": "<ocr>"}, params, use_tqdm=False)
    assert set(output.outputs[0].token_ids) <= set(ids)
    assert any(tag in output.outputs[0].text for tag in tags)


def test_every_position_is_known(llm: LLM, reference: Kosmos2_5Reference) -> None:
    """Up to the longest sequence, beyond the rows of transformers' table, which counts from the padding token's id."""
    media, count = {"image": [make_image(40, 30, 1)]}, 4
    used = len(process(llm, "", *media["image"]).token_ids)
    text = "<ocr>" * (llm.engine.max_model_len - count - used)
    want = reference.generate(text, media, {}, count)
    params = SamplingParams(temperature=0, max_tokens=count, min_tokens=count)
    (output,) = llm.generate({"prompt": text, "multi_modal_data": media}, params, use_tqdm=False)
    assert len(want.prompt_token_ids) + count == llm.engine.max_model_len
    assert (output.prompt_token_ids, output.outputs[0].token_ids) == (want.prompt_token_ids, want.token_ids)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(checkpoint: Path, reference: Kosmos2_5Reference, dtype: str) -> None:
    """Positions, segments, scale and queries take and give the model's type."""
    prompt = {"prompt": "<ocr>", "multi_modal_data": {"image": make_image(40, 30, 1)}}
    with LLM(str(checkpoint), dtype=dtype) as llm:
        output = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1, logprobs=0), use_tqdm=False)[0]
    token = output.outputs[0].token_ids[0]
    with torch.inference_mode():
        logits = reference.model(**theirs(reference, "<ocr>", make_image(40, 30, 1))).logits[0, -1]
    assert output.outputs[0].logprobs[0][token].logprob == pytest.approx(
        torch.log_softmax(logits, -1)[token].item(), abs=0.15
    )

"""What is Kosmos-2's own: the image's place, spaces and tags around it, boxes as text, positions, latent queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import AlreadyExpandedError, ItemLimitError, ProcessorKwargsError, SurplusPlaceholderError
from corellm_kosmos2.contract import Kosmos2Reference
from corellm_kosmos2.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image

QUERIES = 8
TEXTS = (
    "What is this?",
    "  What is this? \n",
    " ",
    "<grounding> An image of<phrase> a circle</phrase><object><patch_index_0001><patch_index_0007></object>",
    "</s> what",
    "<unk>, what",
    "日本",
    "what <s>",
    "what </doc> ",
)
BOX = (1, 7)


@pytest.fixture(scope="module", params=[False, True], ids=["keeps spaces", "drops spaces"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with a padding token that is not the second one, not to be written to."""
    path = tmp_path_factory.mktemp("kosmos2")
    return make_tiny_checkpoint(path, spare_tokens=3, drops_spaces=request.param)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    """The checkpoint, loaded."""
    with LLM(str(checkpoint), dtype="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Kosmos2Reference:
    """Transformers' processor and model."""
    return Kosmos2Reference(checkpoint)


def process(llm: LLM, text: Any, *images: Any, **kwargs: Any) -> Any:
    """Our processing of one request; `text` is text or token ids."""
    key = "prompt" if isinstance(text, str) else "prompt_token_ids"
    request = {key: text, "multi_modal_data": {"image": list(images)}, "mm_processor_kwargs": kwargs}
    return llm.engine.input_processor.process(request)


def theirs(reference: Kosmos2Reference, text: str, **kwargs: Any) -> Any:
    """The processor's own output for a text and an image."""
    given = {"num_image_tokens": QUERIES, "return_tensors": "pt", **kwargs}
    return reference.processor(text=text, images=make_image(40, 30, 1), **given)


# --- the prompt -------------------------------------------------------------------------------------------------------


def test_an_image_stands_behind_bos(llm: LLM) -> None:
    """The layout, written out: tokens of its own before and behind the embeddings."""
    got = process(llm, "<grounding> What", make_image(40, 30, 1))
    tokens = llm.engine.context.tokenizer.convert_ids_to_tokens(got.token_ids)
    assert tokens == ["<s>", "<image>", *["<pad>"] * QUERIES, "</image>", "<grounding>", "▁What"]
    (feature,) = got.features
    assert (feature.placeholder.offset, feature.placeholder.length) == (1, QUERIES + 2)
    assert feature.placeholder.is_embed == (False, *[True] * QUERIES, False)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_the_processors(llm: LLM, reference: Kosmos2Reference, text: str) -> None:
    """Whatever the text begins and ends with, beside an image: all but those that take embeddings, by its own mask."""
    want = theirs(reference, text)
    is_text = want["image_embeds_position_mask"][0] == 0
    for prompt in (text, llm.engine.context.tokenizer(text)["input_ids"]):
        got = torch.tensor(process(llm, prompt, make_image(40, 30, 1)).token_ids)
        assert torch.equal(got[is_text], want["input_ids"][0][is_text])
        assert (got[~is_text] == llm.engine.context.tokenizer.pad_token_id).all()


def test_boxes_are_text(llm: LLM, reference: Kosmos2Reference) -> None:
    """Boxes written into a prompt are the tokens that the processor makes of `bboxes`."""
    phrase = "<grounding><phrase>a circle</phrase>"
    want = theirs(reference, f"{phrase} is", bboxes=[BOX])["input_ids"][0]
    boxed = f"{phrase}<object><patch_index_0001><patch_index_0007></object> is"
    got = process(llm, boxed, make_image(40, 30, 1)).token_ids
    assert got[QUERIES + 2 :] == want[QUERIES + 2 :].tolist()
    assert len(got) == len(want)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"bboxes": [BOX]}, "bboxes: .*<object><patch_index_0044><patch_index_0863></object>"),
        ({"num_image_tokens": QUERIES}, "num_image_tokens: .*leave it out"),
        ({"first_image_token_id": 9}, "first_image_token_id: .*leave it out"),
        ({"add_eos_token": True}, "does not take 'add_eos_token'"),
    ],
    ids=["bboxes", "num_image_tokens", "first_image_token_id", "add_eos_token"],
)
def test_arguments_of_the_text_are_refused(llm: LLM, kwargs: dict[str, Any], message: str) -> None:
    """With what to do instead."""
    with pytest.raises(ProcessorKwargsError, match=message):
        process(llm, "<phrase>a circle</phrase>", make_image(40, 30, 1), **kwargs)


def test_the_processors_tokens_of_an_image_are_refused(llm: LLM, reference: Kosmos2Reference) -> None:
    """Ids that the processor wrote for the image, with it and without: an image would come twice, or be words."""
    expanded = theirs(reference, "What is this?")["input_ids"][0].tolist()
    for images in ([make_image(40, 30, 1)], []):
        with pytest.raises(AlreadyExpandedError, match=rf"{QUERIES + 2} tokens .*without them"):
            process(llm, expanded, *images)


def test_images_are_counted(llm: LLM) -> None:
    """The processor pairs a text with one image; what takes its embeddings stands for nothing else."""
    with pytest.raises(ItemLimitError, match="2 images"):
        process(llm, "What is this?", make_image(40, 30, 1), make_image(40, 30, 2))
    with pytest.raises(SurplusPlaceholderError, match="<pad>"):
        process(llm, "What<pad>")


def test_a_message_is_the_prompt(llm: LLM) -> None:
    """Tags of a conversation stay tags; what stands for an image or ends a text stays text."""
    image = {"type": "image", "image": make_image(40, 30, 1)}
    message = {"role": "user", "content": [{"type": "text", "text": "<grounding> A circle"}, image]}
    got = llm.engine.input_processor.process_chat([message])
    assert got.token_ids == process(llm, "<grounding> A circle", make_image(40, 30, 1)).token_ids
    typed = llm.engine.input_processor.process_chat([{"role": "user", "content": "<image> </s> <pad> </image>"}])
    tokens = llm.engine.context.tokenizer.convert_ids_to_tokens(typed.token_ids)
    assert not {"<image>", "</s>", "<pad>", "</image>"} & {*tokens}
    assert "".join(tokens).replace("▁", "") == "<s><image></s><pad></image>"


def test_a_template_comes_first(llm: LLM) -> None:
    """The operator's is used as it is."""
    template = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    content = [{"type": "image", "image": make_image(40, 30, 1)}, {"type": "text", "text": "why?"}]
    got = llm.engine.input_processor.process_chat([{"role": "user", "content": content}], chat_template=template)
    assert (got.text, len(got.features)) == ("[user]why?", 1)


# --- output -----------------------------------------------------------------------------------------------------------


def test_tags_are_part_of_the_output(llm: LLM) -> None:
    """They are no special tokens, which a text is without."""
    tags = ["<phrase>", "<patch_index_0007>"]
    ids = llm.engine.context.tokenizer.convert_tokens_to_ids(tags)
    params = SamplingParams(temperature=0, max_tokens=3, min_tokens=3, allowed_token_ids=ids)
    (output,) = llm.generate({"prompt": "<grounding>"}, params, use_tqdm=False)
    assert set(output.outputs[0].token_ids) <= set(ids)
    assert any(tag in output.outputs[0].text for tag in tags)


def test_every_position_is_known(llm: LLM, reference: Kosmos2Reference) -> None:
    """Up to the longest sequence, beyond the rows of transformers' table, which counts from the padding token's id."""
    media, count = {"image": [make_image(40, 30, 1)]}, 4
    used = len(process(llm, "one", *media["image"]).token_ids)
    text = " ".join(["one"] * (llm.engine.max_model_len - count - used + 1))
    want = reference.generate(text, media, {}, count)
    params = SamplingParams(temperature=0, max_tokens=count, min_tokens=count)
    (output,) = llm.generate({"prompt": text, "multi_modal_data": media}, params, use_tqdm=False)
    assert len(want.prompt_token_ids) + count == llm.engine.max_model_len
    assert (output.prompt_token_ids, output.outputs[0].token_ids) == (want.prompt_token_ids, want.token_ids)


def test_latent_queries_see_the_whole_image(llm: LLM, checkpoint: Path) -> None:
    """As in transformers' eager attention, which heeds no mark of a causal layer in any release."""
    features = process(llm, "What?", make_image(40, 30, 1)).features
    model = transformers.Kosmos2ForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    pixels = features[0].data["pixel_values"].data[None]
    with torch.inference_mode():
        want = transformers.Kosmos2Model.get_image_features(model, pixels).pooler_output[0]
    encoders = llm.engine.runner.encoders
    encoders.run(features)
    got = encoders.output(features[0])
    encoders.drop([features[0].identifier])
    assert got.shape == want.shape == (QUERIES, 64)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert (want - want.mean(0)).abs().max() > 1e-3  # queries differ


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(checkpoint: Path, reference: Kosmos2Reference, dtype: str) -> None:
    """Positions, scale and queries take and give the model's type."""
    prompt = {"prompt": "What?", "multi_modal_data": {"image": make_image(40, 30, 1)}}
    with LLM(str(checkpoint), dtype=dtype) as llm:
        output = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1, logprobs=0), use_tqdm=False)[0]
    token = output.outputs[0].token_ids[0]
    with torch.inference_mode():
        logits = reference.model(**theirs(reference, "What?")).logits[0, -1]
    assert output.outputs[0].logprobs[0][token].logprob == pytest.approx(
        torch.log_softmax(logits, -1)[token].item(), abs=0.15
    )

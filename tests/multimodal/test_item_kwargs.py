"""Items that depend on their prompt: what identifies them, when an adapter is asked, and what goes first."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pytest
import torch
from PIL import Image

from corellm.errors import ContractError, ItemNotCachedError, ProcessingError
from corellm.hookspecs import hookimpl
from corellm.multimodal import MultiModalFeature, MultiModalItems, PromptReplacement
from corellm.multimodal.processor import MultiModalProcessor
from tests.multimodal.toy import IMAGE, Toy, make, make_image

WHAT, WHERE = 1, 2


class Asked(Toy):
    """An image's tensor ends with the number of the question, the first token that is no image's."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, list[int]]] = []

    @hookimpl
    def get_item_kwargs(self, modality: str, token_ids: Sequence[int]) -> Mapping[str, Any]:
        self.asked.append((modality, list(token_ids)))
        return {"question": next((token for token in token_ids if token != IMAGE), 0)}

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        (image,) = mm_data["image"]
        self.processed += 1
        return {"pixel_values": torch.tensor([[image.width, mm_kwargs["question"]]])}


@pytest.fixture
def adapter() -> Asked:
    return Asked()


@pytest.fixture
def processor(adapter: Asked) -> MultiModalProcessor:
    """Its dummy item is processed."""
    made = make(adapter)
    _ = made.profile
    adapter.asked.clear()
    adapter.processed = 0
    return made


def ask(processor: MultiModalProcessor, question: int, image: Image.Image | None, **kwargs: Any) -> MultiModalFeature:
    """The item of a request with one image."""
    (feature,) = processor.process([IMAGE, question], {"image": image}, **kwargs)[1]
    return feature


def question_of(feature: MultiModalFeature) -> int:
    return int(feature.data["pixel_values"].data[1])


def test_another_question_makes_another_item(processor: MultiModalProcessor, adapter: Asked) -> None:
    """One image has other tensors and another identity; with the same question it is in the cache."""
    what, where, again = (ask(processor, question, make_image(3)) for question in (WHAT, WHERE, WHAT))
    assert (question_of(what), question_of(where)) == (WHAT, WHERE)
    assert what.identifier != where.identifier
    assert (again.identifier, again.data) == (what.identifier, what.data)
    assert adapter.processed == 2


def test_only_what_the_hook_gives_counts(processor: MultiModalProcessor, adapter: Asked) -> None:
    """Prompts that differ elsewhere share their items, and one prompt's items share its question."""
    one = processor.process([IMAGE, WHAT, 5, 6, IMAGE], {"image": [make_image(3), make_image(4)]})[1]
    other = processor.process([IMAGE, WHAT, 7, IMAGE], {"image": [make_image(3), make_image(4)]})[1]
    assert [feature.identifier for feature in one] == [feature.identifier for feature in other]
    assert adapter.processed == 2


def test_it_is_asked_once_for_a_request_with_items(processor: MultiModalProcessor, adapter: Asked) -> None:
    """It sees the prompt before placeholders are expanded; of a text without items it sees nothing."""
    processor.process([IMAGE, 5, IMAGE], {"image": [make_image(3), make_image(4)]})
    assert adapter.asked == [("image", [IMAGE, 5, IMAGE])]
    processor.process([1, 2, 3], {})
    processor.process([1, 2, 3], {}, {"question": 5})
    assert len(adapter.asked) == 1


def test_without_the_hook_nothing_is_asked() -> None:
    """Whether items depend on the prompt is found out once; an extension's wrapper counts, too."""
    plain = make(Toy())
    assert not plain.reads_prompts
    assert ask(plain, WHAT, make_image(3)).identifier == ask(plain, WHERE, make_image(3)).identifier

    class Wrapped(Toy):
        @hookimpl(wrapper=True)
        def get_item_kwargs(self, token_ids: Sequence[int]) -> Generator[None, Any, Mapping[str, Any]]:
            assert (yield) is None
            return {"last": token_ids[-1]}

    wrapped = make(Wrapped())
    assert ask(wrapped, WHAT, make_image(3)).identifier != ask(wrapped, WHERE, make_image(3)).identifier


def test_a_uuid_is_of_its_question(processor: MultiModalProcessor) -> None:
    """An image that was sent with one question is not what its uuid alone stands for beside another."""
    named = {"uuids": {"image": "x"}}
    sent = ask(processor, WHAT, make_image(3), **named)
    assert ask(processor, WHAT, None, **named).identifier == sent.identifier
    with pytest.raises(ItemNotCachedError, match="image 0: only its uuid 'x' was given"):
        ask(processor, WHERE, None, **named)
    assert question_of(ask(processor, WHERE, make_image(3), **named)) == WHERE


def test_embeddings_are_of_their_question() -> None:
    """One uuid under two questions may name embeddings that differ."""

    class Placed(Asked):
        @hookimpl
        def get_prompt_updates(self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Any]) -> Any:
            if not mm_items or mm_items["image"].num_embeddings(0) is None:
                return super().get_prompt_updates(out_mm_kwargs)
            return [PromptReplacement("image", target=[IMAGE], replacement=[IMAGE] * 4)]

    processor, embeddings = make(Placed()), {"image_embeds": torch.full((1, 4, 8), 0.5)}
    what, where, again = (
        processor.process([IMAGE, question], embeddings, uuids={"image": "x"})[1][0].identifier
        for question in (WHAT, WHERE, WHAT)
    )
    assert what == again != where


def test_a_requests_arguments_go_first(processor: MultiModalProcessor) -> None:
    """What a request says for itself is what the item depends on, in whatever prompt."""
    given = {"mm_kwargs": {"question": 7}}
    one, other = ask(processor, WHAT, make_image(3), **given), ask(processor, WHERE, make_image(3), **given)
    assert question_of(one) == question_of(other) == 7
    assert one.identifier == other.identifier != ask(processor, WHAT, make_image(3)).identifier


def test_what_an_expansion_takes_is_bounded(processor: MultiModalProcessor, adapter: Asked) -> None:
    """Nothing is processed of an item whose prompt is not known yet: it has no more tokens than the largest."""
    most = processor.profile.max_tokens["image"]
    assert processor.expansion({"image": [make_image(3)]}, None, {}, None) == most
    assert processor.expansion({"image": [None]}, None, {"image": ["never sent"]}, None) == most
    assert (adapter.processed, adapter.asked) == (0, [])


class Wrong(Asked):
    """Answers `result`, or raises it, for requests."""

    result: Any = None

    @hookimpl
    def get_item_kwargs(self, token_ids: Sequence[int]) -> Any:
        if len(token_ids) == 1:  # the dummy's
            return {"question": 0}
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ("What?", ContractError, r"get_item_kwargs returned 'What\?'; it must return {argument: value}, or None"),
        (ValueError("no"), ProcessingError, r"get_item_kwargs failed with ValueError: no \("),
        (ItemNotCachedError("mine"), ItemNotCachedError, "mine"),
    ],
)
def test_a_wrong_hook_is_named(result: Any, error: type[Exception], words: str) -> None:
    """Its type is checked, what it raises says where; typed errors stay as they are."""
    adapter = Wrong()
    adapter.result = result
    with pytest.raises(error, match=words):
        ask(make(adapter), WHAT, make_image(3))

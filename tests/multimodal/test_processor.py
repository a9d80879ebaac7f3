"""The multimodal processor around a toy adapter: limits, identity, caching, and whatever an adapter can get wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from corellm.errors import (
    ContractError,
    EmbeddingInputError,
    InvalidParameterError,
    ItemLimitError,
    MediaError,
    ProcessingError,
    ProcessorKwargsError,
    PromptTooLongError,
    SurplusPlaceholderError,
    UnsupportedModalityError,
)
from corellm.hookspecs import hookimpl
from corellm.multimodal import PromptReplacement, PromptUpdateDetails, dummy_audios, dummy_images, dummy_videos
from corellm.multimodal.processor import MultiModalProcessor
from tests.multimodal.toy import IMAGE, Toy, make, make_image


def test_expands_and_places_items() -> None:
    """Each image's placeholder is where its token was and as long as the image is wide."""
    tokens, features = make(Toy()).process([1, IMAGE, 2, IMAGE], {"image": [make_image(3), make_image(5)]})
    assert tokens == [1, 9, 9, 9, 2, 9, 9, 9, 9, 9]
    assert [(f.item, f.placeholder.offset, f.placeholder.length) for f in features] == [(0, 1, 3), (1, 5, 5)]


def test_equal_items_are_processed_once() -> None:
    """The second request finds every item in the cache, and gets the same tensors; without a cache it does not."""
    adapter = Toy()
    processor = make(adapter)
    assert processor.profile.max_tokens == {"image": 20}
    first = processor.process([IMAGE, IMAGE], {"image": [make_image(3), make_image(3, red=1)]})
    done = adapter.processed
    assert (
        processor.process([IMAGE, IMAGE], {"image": [make_image(3, red=1), make_image(3)]})[1][0].identifier
        == first[1][1].identifier
    )
    assert adapter.processed == done
    uncached = Toy()
    bare = make(uncached, mm_processor_cache_gb=0)
    for _ in range(2):
        bare.process([IMAGE], {"image": make_image(3)})
    assert uncached.processed == 3  # the dummy, and twice the image


def test_the_operators_sizes_reach_the_dummies() -> None:
    """`limit_mm_per_prompt` with sizes: the dummies are no larger, the count is a limit, and larger items pass."""

    class Bounded(Toy):
        @hookimpl
        def get_dummy_mm_data(self, mm_options: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"image": dummy_images(1, width=20, height=2, bounds=mm_options.get("image"))}

    processor = make(Bounded(), limit_mm_per_prompt={"image": {"count": 2, "width": 6}})
    assert processor.profile.max_tokens == {"image": 6}
    assert len(processor.process([IMAGE], {"image": make_image(7)})[0]) == 7
    with pytest.raises(ItemLimitError, match=r"at most 2 .* limit_mm_per_prompt"):
        processor.process([IMAGE] * 3, {"image": [make_image(2)] * 3})
    unlimited = make(Bounded(), limit_mm_per_prompt={"image": {"width": 30}})
    assert unlimited.profile.max_tokens == {"image": 20}
    assert unlimited.limits == {"image": 4}
    with pytest.raises(UnsupportedModalityError, match=r"'video'; .* image"):
        make(Bounded(), limit_mm_per_prompt={"video": {"num_frames": 4}})


def test_dummies_keep_to_bounds() -> None:
    """Each side, frame count and length is the smaller of the largest possible and the operator's."""
    (image,) = dummy_images(1, width=30, height=20, bounds={"width": 50, "height": 10})
    assert image.size == (30, 10)
    (video,) = dummy_videos(1, width=8, height=6, num_frames=9, bounds={"num_frames": 4, "width": 5})
    assert video.shape == (4, 6, 5, 3)
    assert [len(dummy_audios(1, num_samples=90, bounds=b)[0]) for b in (None, {}, {"length": 40})] == [90, 90, 40]


def test_identity_depends_on_content_arguments_and_name() -> None:
    """Other pixels, other processor arguments, a uuid: other identifiers."""
    processor = make(Toy())

    def identifier(**more: Any) -> str:
        red = more.pop("red", 0)
        return processor.process([IMAGE], {"image": make_image(3, red)}, **more)[1][0].identifier

    variants = [
        identifier(), identifier(red=1), identifier(mm_kwargs={"a": 1}), identifier(mm_kwargs={"a": 1.0}),
        identifier(uuids={"image": "x"}), identifier(uuids={"image": ["y"]}),
    ]  # fmt: skip
    assert len(set(variants)) == len(variants)
    assert identifier() == variants[0]
    assert identifier(red=1, uuids={"image": "x"}) == identifier(uuids={"image": "x"})


def test_limits() -> None:
    """The model's limit, the operator's lower one; a higher one and one for another modality are refused at start."""
    with pytest.raises(ItemLimitError, match=r"5 images .* at most 4"):
        make(Toy()).process([IMAGE] * 5, {"image": [b"never opened"] * 5})
    with pytest.raises(ItemLimitError, match="at most 1"):
        make(Toy(), limit_mm_per_prompt={"image": 1}).process([IMAGE] * 2, {"image": [make_image(2)] * 2})
    with pytest.raises(ItemLimitError, match="at most 4"):
        make(Toy(), limit_mm_per_prompt={"image": 5})
    with pytest.raises(UnsupportedModalityError, match=r"'video'; .* image"):
        make(Toy(), limit_mm_per_prompt={"video": 1})


def test_a_placeholder_without_any_item() -> None:
    """Also where the request has no items at all, and for any token that would take an embedding."""
    with pytest.raises(SurplusPlaceholderError, match=r"'I' .* position 1"):
        make(Toy()).process([1, IMAGE], {})


FRAME = 7
"""Begins an image and takes no embedding."""


class Framed(Toy):
    """Its placeholder is no token that takes embeddings, as Gemma's."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    @hookimpl
    def get_dummy_text(self) -> str:
        return chr(FRAME)

    @hookimpl
    def get_prompt_updates(self, mm_items: Any, out_mm_kwargs: Mapping[str, Any]) -> list[PromptReplacement]:
        self.asked.append(len(mm_items))

        def replacement(i: int) -> PromptUpdateDetails:
            width = int(out_mm_kwargs["image"][i]["pixel_values"].data[0])
            return PromptUpdateDetails.select_token_id([FRAME, *[IMAGE] * width], IMAGE)

        return [PromptReplacement("image", target=chr(FRAME), replacement=replacement)]


def test_a_placeholder_that_takes_no_embedding_without_any_item() -> None:
    """It is refused in a prompt of text alone; the adapter is asked for it once, at load."""
    adapter = Framed()
    processor = make(adapter)
    assert processor.process([1, FRAME], {"image": make_image(2)})[0] == [1, FRAME, IMAGE, IMAGE]
    assert adapter.asked == [1, 0, 1]  # the dummy, no item, the image
    with pytest.raises(SurplusPlaceholderError, match=r"1 placeholder .* for 0 images") as caught:
        processor.process([1, FRAME, 2], {})
    assert (caught.value.modality, caught.value.expected, caught.value.got) == ("image", 0, 1)
    with pytest.raises(SurplusPlaceholderError, match=r"'I' .* position 1"):
        processor.process([1, IMAGE], {})
    assert processor.process([1, 2], {}) == ([1, 2], [])
    assert adapter.asked == [1, 0, 1]


def test_an_adapter_that_needs_items_for_its_updates(caplog: pytest.LogCaptureFixture) -> None:
    """It loads and serves; its placeholder in a prompt of text alone stays text."""

    class Eager(Framed):
        @hookimpl
        def get_prompt_updates(self, mm_items: Any, out_mm_kwargs: Mapping[str, Any]) -> list[PromptReplacement]:
            assert out_mm_kwargs["image"]
            return super().get_prompt_updates(mm_items, out_mm_kwargs)

    processor = make(Eager())
    with caplog.at_level("DEBUG", logger="corellm.multimodal.profile"):
        assert processor.process([1, FRAME], {}) == ([1, FRAME], [])
    (told,) = caplog.messages
    assert told.startswith("get_prompt_updates ")
    assert told.endswith("KeyError: 'image'")
    assert processor.process([FRAME], {"image": make_image(2)})[0] == [FRAME, IMAGE, IMAGE]


class Scaled(Toy):
    """An image has as many embeddings as it is wide, times the argument `scale`, or as are given."""

    @hookimpl
    def get_prompt_updates(
        self, mm_items: Any, mm_kwargs: Mapping[str, Any], out_mm_kwargs: Mapping[str, Any]
    ) -> list[PromptReplacement]:
        def replacement(i: int) -> list[int]:
            given = mm_items["image"].num_embeddings(i)
            width = given or int(out_mm_kwargs["image"][i]["pixel_values"].data[0] * mm_kwargs.get("scale", 1))
            return [IMAGE] * width

        return [PromptReplacement("image", target=[IMAGE], replacement=replacement)]


def test_a_requests_arguments_keep_to_the_plan() -> None:
    """An item may have as many embeddings as the dummy; what arguments give beyond is refused, in any request."""
    processor, images = make(Scaled()), [make_image(2), make_image(6)]
    assert len(processor.process([IMAGE] * 2, {"image": images}, {"scale": 3})[0]) == 24
    for _ in range(2):  # processed, and from the cache
        with pytest.raises(
            ProcessorKwargsError,
            match=r"^image 1: .*\{'scale': 4\} .* 24 embeddings, .* 20 .*LLM\(",
        ) as caught:
            processor.process([IMAGE] * 2, {"image": images}, {"scale": 4})
        assert (caught.value.modality, caught.value.item) == ("image", 1)
        assert (caught.value.expected, caught.value.got) == (20, 24)
    assert len(processor.process([IMAGE], {"image": make_image(25)})[0]) == 25  # larger, but by itself
    assert len(processor.process([IMAGE], {"image_embeds": torch.zeros(1, 25, 8)}, {"scale": 4})[0]) == 25
    planned = make(Scaled(), mm_processor_kwargs={"scale": 4}, limit_mm_per_prompt={"image": {"width": 20}})
    assert len(planned.process([IMAGE] * 2, {"image": images}, {"scale": 4})[0]) == 32
    with pytest.raises(ProcessorKwargsError, match=r"limit_mm_per_prompt$"):
        planned.process([IMAGE], {"image": make_image(6)}, {"images_kwargs": {"scale": 14}})


def test_arguments_that_leave_no_embedding_are_refused() -> None:
    """By a request's own, the request is wrong; with none but the operator's, the adapter is."""
    processor, images = make(Scaled()), [make_image(2), make_image(6)]
    for _ in range(2):  # processed, and from the cache
        with pytest.raises(
            ProcessorKwargsError,
            match=r"^image 0: .*\{'images_kwargs': \{'scale': 0\.2\}\} .*without an embedding",
        ) as caught:
            processor.process([IMAGE] * 2, {"image": images}, {"images_kwargs": {"scale": 0.2}})
        assert (caught.value.modality, caught.value.item, caught.value.got) == ("image", 0, 0)
        assert caught.value.status == 400
    planned = make(Scaled(), mm_processor_kwargs={"scale": 0.2})
    for kwargs in ({}, {"scale": 0.2}):
        with pytest.raises(ContractError, match=r"get_prompt_updates, image 0: .* 0 tokens"):
            planned.process([IMAGE] * 2, {"image": images}, kwargs)


@pytest.mark.parametrize(
    "hook",
    [
        "get_supported_mm_limits", "get_data_parser", "get_dummy_text", "get_dummy_mm_data",
        "get_mm_max_tokens_per_item",
    ],
)  # fmt: skip
def test_hooks_that_fail_at_load_are_named(hook: str) -> None:
    """With the error and its place, as those of a request."""

    def failing(self: Toy) -> None:
        raise KeyError("width")

    broken = type("Broken", (Toy,), {hook: hookimpl(failing)})
    with pytest.raises(ProcessingError, match=rf"^{hook} .*KeyError: 'width' \(.*test_processor\.py:\d+\)$"):
        _ = make(broken()).profile


@pytest.mark.parametrize(
    ("dummies", "told"),
    [
        ({}, "returned no item; it must return {'image': media}"),
        ({"image": []}, "returned no item"),
        ({"image": [make_image(2)] * 2}, "returned {'image': 2}"),
        ({"images": [make_image(2)]}, "get_data_parser .*'images'"),
        ({"image": [None]}, "MediaError: image 0: None"),
    ],
)
def test_dummies_are_what_was_asked_for(dummies: Mapping[str, Any], told: str) -> None:
    """Nothing, too much, another name, no media: the hook that returned them is named at load."""
    broken = type("Broken", (Toy,), {"get_dummy_mm_data": hookimpl(lambda self: dummies)})
    with pytest.raises(ContractError, match=rf"^get_dummy_mm_data .*mm_counts={{'image': 1}}.* {told}"):
        _ = make(broken()).profile


def test_a_typed_error_at_load_names_its_hook() -> None:
    """What a dummy hook refuses keeps its type, and gets the hook's name."""

    def refuse(self: Toy) -> None:
        raise ProcessorKwargsError("size must be positive")

    broken = type("Broken", (Toy,), {"get_dummy_mm_data": hookimpl(refuse)})
    with pytest.raises(ProcessorKwargsError, match=r"^get_dummy_mm_data: size must be positive$"):
        _ = make(broken()).profile


def test_errors_name_the_item() -> None:
    """The second image is broken, or found to be when it is processed; a list of uuids has the wrong length."""
    with pytest.raises(MediaError, match="image 1: "):
        make(Toy()).process([IMAGE, IMAGE], {"image": [make_image(2), b"junk"]})

    class Lazy(Toy):
        @hookimpl
        def call_hf_processor(self, mm_data: Mapping[str, Any]) -> Mapping[str, Any]:
            if mm_data["image"][0].width == 3:
                raise MediaError("frame 7 cannot be decoded")
            return super().call_hf_processor(mm_data)

    with pytest.raises(MediaError, match=r"^image 1: frame 7 cannot be decoded$") as caught:
        make(Lazy()).process([IMAGE, IMAGE], {"image": [make_image(2), make_image(3)]})
    assert (caught.value.modality, caught.value.item) == ("image", 1)
    with pytest.raises(InvalidParameterError, match="2 ids for 1 items"):
        make(Toy()).process([IMAGE], {"image": make_image(2)}, uuids={"image": ["a", "b"]})


@pytest.mark.parametrize(
    ("hook", "result", "error", "message"),
    [
        (
            "call_hf_processor",
            lambda self: 1 / 0,
            ProcessingError,
            "image 0: the processor failed with ZeroDivisionError",
        ),
        ("call_hf_processor", lambda self: {"other": torch.ones(1, 2)}, ContractError, "other"),
        ("call_hf_processor", lambda self: {"pixel_values": torch.ones(2, 4)}, ContractError, "into 2"),
        ("call_hf_processor", lambda self: {}, ContractError, "into 0"),
        (
            "get_prompt_updates",
            lambda self: 1 / 0,
            ProcessingError,
            "get_prompt_updates failed with ZeroDivisionError.*test_processor.py:",
        ),
        ("get_prompt_updates", lambda self: [], ContractError, "get_prompt_updates"),
        ("get_prompt_updates", lambda self: None, ContractError, r"returned None \(a forgotten return\?\); it must"),
        ("get_mm_fields_config", lambda self: None, ContractError, "get_mm_fields_config returned None"),
    ],
)
def test_adapters_that_fail(hook: str, result: Any, error: type[Exception], message: str) -> None:
    """A failing hook fails the one request, with a typed error that names it."""
    broken = type("Broken", (Toy,), {hook: hookimpl(result)})()
    processor = make(broken)
    items = processor._parser.parse({"image": make_image(2)})
    with pytest.raises(error, match=message):
        processor._expand([IMAGE], items, {})


def test_stated_maximum_must_cover_the_dummy() -> None:
    """An adapter whose stated worst case is less than its own dummy is refused; more is taken at its word."""

    def stating(tokens: int) -> Toy:
        hook = hookimpl(lambda self, seq_len: {"image": tokens})
        return type("Stating", (Toy,), {"get_mm_max_tokens_per_item": hook})()  # type: ignore[no-any-return]

    with pytest.raises(ContractError, match=r"19 image tokens, .* 20"):
        _ = make(stating(19)).profile
    assert make(stating(50)).profile.max_embeds == {"image": 50}


def test_dummies_are_not_bound_by_the_operators_limits() -> None:
    """Limits hold for what users send, also with an adapter's own parser: a low one does not stop the start."""
    processor = make(Toy(), max_image_pixels=10)
    assert processor.profile.max_tokens == {"image": 20}
    assert len(processor.process([IMAGE], {"image": make_image(5)})[1]) == 1
    with pytest.raises(MediaError, match=r"image 0: .* 12 pixels, .* 10"):
        processor.process([IMAGE], {"image": make_image(6)})


def test_embeddings_are_refused_with_the_adapters_reason() -> None:
    """Before anything is made of them."""
    hook = hookimpl(lambda self, modality: f"a toy has no {modality} embeddings")
    processor = make(type("Refusing", (Toy,), {"refuse_embeddings": hook})())
    with pytest.raises(EmbeddingInputError, match="a toy has no image embeddings"):
        processor.process([IMAGE], {"image_embeds": torch.zeros(1, 2, 8)})
    assert len(make(Toy()).process([IMAGE], {"image": make_image(2)})[1]) == 1


@pytest.mark.parametrize("error", [ProcessorKwargsError, PromptTooLongError, MediaError])
def test_what_the_processor_refuses_names_the_item(error: type[Exception]) -> None:
    """The error names the one image of three that is refused."""

    def call(self: Toy, mm_data: Mapping[str, Any]) -> Mapping[str, Any]:
        if mm_data["image"][0].width == 7:
            raise error("too blue")
        return Toy.call_hf_processor(self, mm_data)

    processor = make(type("Choosy", (Toy,), {"call_hf_processor": hookimpl(call)})())
    with pytest.raises(error, match=r"^image 1: too blue$"):
        processor.process([IMAGE] * 3, {"image": [make_image(2), make_image(7), make_image(3)]})


class Plain(Toy):
    """Leaves a prompt's text to the core's default."""

    @hookimpl(trylast=True)
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        return token_ids


def test_a_text_without_placeholders_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is expanded where there is no item and nothing that stands for one; a placeholder is still found."""
    short, long = make(Plain()), make(Toy())
    _ = short.profile
    assert short.process([1, 2, 300], {}) == long.process([1, 2, 300], {}) == ([1, 2, 300], [])
    with pytest.raises(SurplusPlaceholderError):
        short.process([1, IMAGE, 3], {})
    monkeypatch.setattr(MultiModalProcessor, "_expand", lambda *_, **__: pytest.fail("it was expanded"))
    assert short.process([1, 2, 300], {}) == ([1, 2, 300], [])
    with pytest.raises(pytest.fail.Exception):
        long.process([1, 2, 300], {})

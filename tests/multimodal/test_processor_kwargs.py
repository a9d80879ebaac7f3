"""Processor arguments by modality: as transformers sorts them, and an item depends on its own alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.processing_utils import VideosKwargs

from corellm.errors import ContractError, ProcessorKwargsError, SurplusPlaceholderError
from corellm.hookspecs import hookimpl
from corellm.multimodal import MultiModalFieldConfig, PromptReplacement
from corellm.multimodal.defaults import declared_arguments
from corellm.multimodal.processor import MultiModalProcessor
from corellm.multimodal.processor_kwargs import KwargsByModality
from tests.multimodal.toy import IMAGE, VIDEO, Toy, make, make_image

NAMES = {"image": frozenset({"size", "crop"}), "video": frozenset({"size", "fps"})}

PARTS = SimpleNamespace(
    valid_processor_kwargs=Qwen2VLProcessor.valid_processor_kwargs,
    image_processor=SimpleNamespace(valid_kwargs=Qwen2VLImageProcessorPil.valid_kwargs),
    video_processor=SimpleNamespace(valid_kwargs=VideosKwargs),
)
"""What transformers looks at of a processor when it sorts arguments."""
VALUES: dict[str, Any] = {
    "do_resize": False, "do_normalize": True, "min_pixels": 784, "max_pixels": 7840, "fps": 2, "num_frames": 4,
    "do_sample_frames": True, "merge_size": 2, "patch_size": 14,
}  # fmt: skip
FOR_IMAGES, FOR_VIDEOS = (
    sorted((declared_arguments(PARTS, modality) or frozenset()) & VALUES.keys()) for modality in ("image", "video")
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments for all, and in groups: each in one place."""
    shared = draw(st.sets(st.sampled_from(sorted({*FOR_IMAGES, *FOR_VIDEOS}))))
    kwargs: dict[str, Any] = {name: VALUES[name] for name in shared}
    for group, known in (("images_kwargs", FOR_IMAGES), ("videos_kwargs", FOR_VIDEOS)):
        own = draw(st.sets(st.sampled_from(known))) - shared
        if own or draw(st.booleans()):
            kwargs[group] = {name: VALUES[name] for name in own}
    return kwargs


@given(kwargs=requests())
@settings(max_examples=100, deadline=None)
def test_arguments_are_sorted_as_transformers_sorts_them(kwargs: dict[str, Any]) -> None:
    """Each modality gets what transformers would hand to its part of Qwen2-VL's processor."""
    names = {modality: declared_arguments(PARTS, modality) for modality in ("image", "video")}
    merged = transformers.ProcessorMixin._merge_kwargs(PARTS, PARTS.valid_processor_kwargs, **kwargs)
    resolved = KwargsByModality({}, names).resolve(kwargs)
    for modality, group in (("image", "images_kwargs"), ("video", "videos_kwargs")):
        assert resolved[modality] == {name: value for name, value in merged[group].items() if name in VALUES}


def test_the_two_parts_differ() -> None:
    """Else the test above would show nothing: some arguments are for both, some for either."""
    assert {"fps", "num_frames"} <= {*FOR_VIDEOS} - {*FOR_IMAGES}
    assert {*FOR_IMAGES} - {*FOR_VIDEOS}
    assert "do_resize" in {*FOR_IMAGES} & {*FOR_VIDEOS}


@pytest.mark.parametrize(
    ("operators", "request_", "image", "video"),
    [
        ({}, None, {}, {}),
        ({"size": 1}, {"fps": 2}, {"size": 1}, {"size": 1, "fps": 2}),
        ({"size": 1, "fps": 1}, {"images_kwargs": {"size": 2}}, {"size": 2}, {"size": 1, "fps": 1}),
        ({"images_kwargs": {"size": 1, "crop": 3}}, {"size": 2}, {"size": 2, "crop": 3}, {"size": 2}),
        (
            {"images_kwargs": {"size": 1, "crop": 3}},
            {"images_kwargs": {"size": None}, "videos_kwargs": {}},
            {"size": None, "crop": 3},
            {},
        ),
        ({"audio_kwargs": {}}, {"colour": 1}, {"colour": 1}, {"colour": 1}),
    ],
)
def test_requests_are_laid_over_operators_one_by_one(
    operators: Any, request_: Any, image: dict[str, Any], video: dict[str, Any]
) -> None:
    """In whichever form either gave an argument; an unknown argument goes to every modality, to be refused."""
    given_before = repr((operators, request_))
    assert KwargsByModality(operators, NAMES).resolve(request_) == {"image": image, "video": video}
    assert repr((operators, request_)) == given_before


def test_an_argument_that_no_other_modality_knows_is_kept() -> None:
    """A modality whose arguments are not known gets all; another that has none of its own too, but for others'."""
    names = {"image": None, "video": frozenset({"fps"}), "audio": frozenset[str]()}
    resolved = KwargsByModality({}, names).resolve({"fps": 1, "gain": 2, "images_kwargs": {"what": 3}})
    assert resolved == {"image": {"fps": 1, "gain": 2, "what": 3}, "video": {"fps": 1, "gain": 2}, "audio": {"gain": 2}}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"images_kwargs": 5}, "images_kwargs .*5"),
        ({"images_kwargs": {1: 2}}, "images_kwargs"),
        ({"images_kwargs": {"fps": 1}}, "images_kwargs: 'fps' .*: crop, size"),
        ({"audio_kwargs": {"gain": 1}}, "audio_kwargs: .*no audio"),
        ({"size": 1, "images_kwargs": {"size": 2}}, "'size' .* images_kwargs"),
    ],
)
def test_groups_are_checked(kwargs: dict[str, Any], message: str) -> None:
    """Groups of arguments are checked, of a request and of the operator."""
    with pytest.raises(ProcessorKwargsError, match=f"^mm_processor_kwargs: {message}"):
        KwargsByModality({}, NAMES).resolve(kwargs)
    with pytest.raises(ProcessorKwargsError, match=message):
        KwargsByModality(kwargs, NAMES)


class Both(Toy):
    """Videos become as many tokens as `fps` says, images as many as they are wide, plus `size`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, Any]]] = []

    @hookimpl
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": 2, "video": 2}

    @hookimpl
    def get_mm_max_tokens_per_item(self) -> Mapping[str, int]:
        return {"video": 3}

    @hookimpl
    def get_mm_kwargs_names(self, modality: str) -> list[str]:
        return {"image": ["size"], "video": ["size", "fps"]}[modality]

    @hookimpl
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return "V" if "video" in mm_counts else "I"

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        return {modality: [video(9)] if modality == "video" else make_image(20) for modality in mm_counts}

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        (modality,) = mm_data
        self.seen.append((modality, dict(mm_kwargs)))
        return {"values": torch.tensor([[mm_kwargs.get("fps") or 1]]), "kind": torch.tensor([modality == "video"])}

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig]:
        batched = MultiModalFieldConfig.batched("video" if hf_inputs["kind"] else "image")
        return {"values": batched, "kind": batched}

    @hookimpl
    def get_prompt_updates(self, mm_kwargs: Mapping[str, Any]) -> list[PromptReplacement]:
        return [
            PromptReplacement(modality, target=[token], replacement=[token] * (mm_kwargs.get("fps") or 1))
            for modality, token in (("image", IMAGE), ("video", VIDEO))
        ]


def video(seed: int) -> Any:
    """A few frames."""
    return torch.full((2, 4, 4, 3), seed, dtype=torch.uint8).numpy()


def ask(processor: MultiModalProcessor, **kwargs: Any) -> tuple[list[int], dict[str, str]]:
    """Tokens and identifiers of a request with one of each."""
    data = {"image": make_image(3), "video": [video(1)]}
    tokens, features = processor.process([IMAGE, VIDEO], data, kwargs)
    return tokens, {feature.modality: feature.identifier for feature in features}


def make_both(**config: Any) -> tuple[Both, MultiModalProcessor]:
    """The adapter, and its processor after load."""
    adapter = Both()
    processor = make(adapter, **config)
    _ = processor.profile
    adapter.seen.clear()
    return adapter, processor


def test_an_argument_for_videos_leaves_images_alone() -> None:
    """Neither does it reach them, nor are they processed again when it changes; nor does their placeholder change."""
    adapter, processor = make_both()
    _, plain = ask(processor)
    tokens, faster = ask(processor, fps=3)
    _, nested = ask(processor, videos_kwargs={"fps": 3})
    assert adapter.seen == [("image", {}), ("video", {}), ("video", {"fps": 3})]
    assert tokens == [IMAGE] + [VIDEO] * 3
    assert plain["image"] == faster["image"] == nested["image"]
    assert plain["video"] != faster["video"] == nested["video"]


def test_an_argument_for_both_changes_both() -> None:
    """And in a group, one."""
    adapter, processor = make_both()
    _, plain = ask(processor)
    _, both = ask(processor, size=2)
    _, one = ask(processor, images_kwargs={"size": 2})
    assert adapter.seen[2:] == [("image", {"size": 2}), ("video", {"size": 2})]
    assert one == {"image": both["image"], "video": plain["video"]}
    assert not set(plain.values()) & set(both.values())


class WithAudio(Both):
    """Has a placeholder for audio, too, of two ordinary tokens."""

    @hookimpl
    def get_prompt_updates(self, mm_kwargs: Mapping[str, Any]) -> list[PromptReplacement]:
        return [*super().get_prompt_updates(mm_kwargs), PromptReplacement("audio", target=[65, 66], replacement=[65])]


@pytest.mark.parametrize("kwargs", [{}, {"fps": 2}])
def test_a_placeholder_of_a_modality_without_items_is_surplus(kwargs: dict[str, Any]) -> None:
    """With any arguments: also where updates are asked for each modality by itself."""
    processor = make(WithAudio())
    with pytest.raises(SurplusPlaceholderError, match=r"1 placeholder .* 0 audio"):
        processor.process([IMAGE, 65, 66, VIDEO], {"image": make_image(3), "video": [video(1)]}, kwargs)


ARGUMENTS = st.dictionaries(st.sampled_from(["size", "fps", "colour"]), st.sampled_from([1, 2, None]), max_size=3)
GROUPED = st.dictionaries(st.sampled_from(["images_kwargs", "videos_kwargs"]), st.just({"size": 2}), max_size=2)


def test_items_are_shared_exactly_when_the_adapter_sees_the_same() -> None:
    """Whatever the operator's and two requests' arguments are: without a cache the adapter is asked, and tells."""

    @given(operators=ARGUMENTS, a=ARGUMENTS, b=ARGUMENTS, grouped=GROUPED)
    @settings(max_examples=60, deadline=None)
    def compare(operators: dict[str, Any], a: dict[str, Any], b: dict[str, Any], grouped: dict[str, Any]) -> None:
        adapter, processor = make_both(mm_processor_cache_gb=0, mm_processor_kwargs=operators)
        results = []
        for kwargs in (a, b, {**b, "size": 1}, {name: value for name, value in b.items() if name != "size"} | grouped):
            adapter.seen.clear()
            _, identifiers = ask(processor, **kwargs)
            results.append((dict(adapter.seen), identifiers))
        for seen, found in results:
            for other_seen, other_found in results:
                for modality in ("image", "video"):
                    shared = found[modality] == other_found[modality]
                    assert shared == (seen[modality] == other_seen[modality])

    compare()


@pytest.mark.parametrize("names", ["size", 5, [1], {"size": 1}.values()])
def test_hook_results_that_are_not_names(names: Any) -> None:
    """Names; a single string is not a list of them."""
    broken = type("Broken", (Toy,), {"get_mm_kwargs_names": hookimpl(lambda self: names)})()
    with pytest.raises(ContractError, match="get_mm_kwargs_names returned"):
        _ = make(broken).profile

"""Rules about limits: which modalities a model takes, how many items of each, and how many tokens one takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from corellm.errors import MediaTooLargeError, MultiModalError, RequestError
from corellm.llm import LLM
from corellm.sampling_params import SamplingParams
from corellm.testing.contract.base import ContractRules
from corellm.testing.subject import Subject, describe, extreme_items, large_item

OPERATORS_BOUNDS = {
    "image": {"max_image_pixels": 400},
    "video": {"max_video_frames": 1},
    "audio": {"max_audio_seconds": 0.05},
}
"""Bounds below the smallest item of `Subject.item`."""
ENLARGING: Sequence[Mapping[str, Any]] = (
    {"do_resize": False},
    {"do_resize": False, "do_center_crop": False},
    {"do_resize": False, "do_pad": False},
    {"min_pixels": 10**6, "max_pixels": 10**6},
    {"num_frames": 64},
    {"fps": 100.0},
    {"truncation": False},
)
"""A request's arguments that, where the processor takes them, may give an item more embeddings than planned."""


class LimitRules(ContractRules):
    """Numbers and sizes."""

    def test_items_of_another_kind_are_refused(self, subject: Subject) -> None:
        """A modality that the model does not take, or an item under the wrong name: refused by name."""
        for modality in {"image", "video", "audio"} - set(subject.modalities):
            with self.refusing(
                "get_supported_mm_limits",
                f"a {modality}",
                MultiModalError,
                words=modality,
                fix="name only what the model takes",
            ):
                subject.process("What?", {modality: subject.item("image", 0)})

    @pytest.mark.parametrize("allowed", [0, 1, 2])
    def test_limits(self, subject: Subject, allowed: int) -> None:
        """As many items as allowed are taken, one more is refused with both numbers; none allowed means none."""
        for modality in subject.modalities:
            own = subject.hooks.get_supported_mm_limits()[modality]
            if own is not None and allowed > own:
                with self.refusing(
                    "get_supported_mm_limits",
                    f"a limit of {allowed} above the model's {own}",
                    MultiModalError,
                    words=str(own),
                    fix="state the model's limit",
                ):
                    subject.fresh(limit_mm_per_prompt={modality: allowed})
                continue
            inputs = subject.fresh(limit_mm_per_prompt={modality: allowed})
            for count in range(allowed + 2):
                parts = [part for seed in range(count) for part in ((modality, subject.item(modality, seed)), " ")]
                request = subject.prompt(["What?", *parts])
                if count <= allowed:
                    with self.expecting(f"{count} {modality}s of {allowed}"):
                        features = subject.process(*request, inputs=inputs).features
                    self.require(
                        len(features) == count,
                        "get_prompt_updates",
                        expected=f"{count} items",
                        got=len(features),
                        fix="place every item",
                    )
                else:
                    with self.refusing(
                        "get_supported_mm_limits",
                        f"{count} {modality}s of {allowed}",
                        MultiModalError,
                        words=str(allowed),
                        fix="leave the count to the core",
                    ):
                        subject.process(*request, inputs=inputs)

    def test_the_models_own_limit(self, subject: Subject) -> None:
        """Where the model takes a limited number of items, one more is refused, with both numbers."""
        for modality, limit in subject.hooks.get_supported_mm_limits().items():
            self.require(
                limit is None or (isinstance(limit, int) and limit > 0),
                "get_supported_mm_limits",
                expected="None for any number, or 1 and more",
                got=limit,
                fix="leave out a modality that is not taken",
            )
            if limit is not None and limit < 16:
                items = [subject.item(modality, seed) for seed in range(limit + 1)]
                text = "What?" + subject.placeholder(modality) * len(items)
                with self.refusing(
                    "get_supported_mm_limits",
                    f"{limit + 1} {modality}s",
                    MultiModalError,
                    words=str(limit),
                    fix="state the limit",
                ):
                    subject.process(text, {modality: items})

    def test_the_operators_bounds_hold(self, subject: Subject) -> None:
        """An item larger than the operator allows is refused before it is decoded."""
        for modality in subject.modalities:
            bounds: Any = OPERATORS_BOUNDS[modality]
            item = subject.item(modality, 0)
            with self.refusing(
                "get_data_parser",
                f"{describe(item)} where {bounds} is allowed",
                MediaTooLargeError,
                fix="let corellm.multimodal.DataParser read media, or keep to its `limits`",
            ):
                subject.process(*subject.prompt([(modality, item), "?"]), inputs=subject.fresh(**bounds))

    def test_a_short_context(self, subject: Subject) -> None:
        """With `max_model_len=8` the model loads and generates, and items that do not fit are refused."""
        fix = "keep to seq_len in get_dummy_mm_data and get_mm_max_tokens_per_item, also where it is small"
        with (
            self.expecting("a model with max_model_len=8", hook="get_dummy_mm_data", fix=fix),
            LLM(str(subject.checkpoint), dtype="float32", max_model_len=8) as llm,
        ):
            llm.generate("a", SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
            for modality in subject.modalities:
                for seed in (0, 3):
                    text, media = subject.prompt([(modality, subject.item(modality, seed)), "a"])
                    with suppress(RequestError):
                        llm.generate({"prompt": text, "multi_modal_data": media}, use_tqdm=False)

    # --- the worst case ---------------------------------------------------------------------------------------------

    def test_dummies_come_in_any_number(self, subject: Subject) -> None:
        """`get_dummy_text` and `get_dummy_mm_data` return as many placeholders and items as `mm_counts` says."""
        for modality in subject.modalities:
            one = subject.placeholder(modality)
            for count in range(subject.several(modality) + 1):
                counts = {modality: count}
                with self.expecting(f"dummies for {counts}"):
                    text = subject.hooks.get_dummy_text(mm_counts=counts)
                    data = subject.hooks.get_dummy_mm_data(
                        seq_len=subject.llm.engine.max_model_len, mm_counts=counts, mm_options={}
                    )
                self.require(
                    text == one * count,
                    "get_dummy_text",
                    expected=f"{one * count!r} for {counts}",
                    got=repr(text),
                    fix="repeat the placeholder mm_counts.get(modality, 0) times",
                )
                given = len(data.get(modality) or ())
                self.require(
                    given == count,
                    "get_dummy_mm_data",
                    expected=f"{count} {modality}s",
                    got=given,
                    fix="make mm_counts.get(modality, 0) items",
                )

    def test_the_dummy_is_the_stated_maximum(self, subject: Subject) -> None:
        """`get_mm_max_tokens_per_item` states as many tokens as the dummy item takes.

        Memory is planned by the dummy, requests are admitted by the stated number.
        """
        profile = subject.processor.profile
        stated = self._stated(subject)
        for modality in subject.modalities:
            dummy = next(f for f in profile.features if f.modality == modality).placeholder.length
            want = stated.get(modality, dummy)
            self.require(
                dummy == want,
                "get_dummy_mm_data",
                expected=f"a dummy {modality} of {want} tokens",
                got=dummy,
                fix="make the dummy the item that becomes the most tokens, and state that number",
            )

    def test_no_item_exceeds_the_stated_maximum(self, subject: Subject) -> None:
        """An item of any size takes at most as many tokens as planned for, or is refused."""
        profile, stated = subject.processor.profile, self._stated(subject)
        for modality in subject.modalities:
            most = stated.get(modality, profile.max_tokens[modality])
            for item in extreme_items(subject, modality):
                for feature in self.taken(subject, modality, item, describe(item)):
                    self.require(
                        feature.placeholder.length <= most,
                        "get_dummy_mm_data",
                        expected=f"{describe(item)} becomes at most {most} tokens",
                        got=feature.placeholder.length,
                        fix="make the dummy larger and state more in get_mm_max_tokens_per_item, or refuse the item",
                    )

    def test_arguments_keep_to_the_plan(self, subject: Subject) -> None:
        """Whatever a request's arguments, a large item has at most as many embeddings as planned for, or is refused."""
        for modality in subject.modalities:
            planned, item = subject.processor.profile.max_embeds[modality], large_item(subject, modality)
            for kwargs in ENLARGING:
                what = f"{describe(item)} with {dict(kwargs)}"
                for feature in self.taken(subject, modality, item, what, kwargs):
                    self.require(
                        feature.placeholder.num_embeds <= planned,
                        "call_hf_processor",
                        expected=f"{what} has at most {planned} embeddings",
                        got=feature.placeholder.num_embeds,
                        fix="refuse such an item, or such arguments, with a ProcessorKwargsError",
                    )

    def _stated(self, subject: Subject) -> Any:
        return (
            subject.hooks.get_mm_max_tokens_per_item(
                seq_len=subject.llm.engine.max_model_len, mm_counts=dict.fromkeys(subject.modalities, 1)
            )
            or {}
        )

"""Rules about limits: which modalities a model takes, and how many items of each."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from corellm.errors import MediaTooLargeError, MultiModalError, RequestError
from corellm.llm import LLM
from corellm.multimodal.defaults import SUBPROCESSORS
from corellm.sampling_params import SamplingParams
from corellm_testing.contract.base import ContractRules
from corellm_testing.quick import slow
from corellm_testing.reference import token_ids_of
from corellm_testing.subject import Subject, describe

OPERATORS_BOUNDS = {
    "image": {"max_image_pixels": 400},
    "video": {"max_video_frames": 1},
    "audio": {"max_audio_seconds": 0.05},
}
"""Bounds below the smallest item of `Subject.item`."""
MANY = 16
"""Limits below are tried with one item more."""
COUNTLESS = 300
"""Limits below are compared with the reference's, which takes one more or does not."""


class LimitRules(ContractRules):
    """Kinds and numbers."""

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
            if limit is not None and limit < MANY:
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

    def test_every_modality_of_the_model_is_taken(self, subject: Subject) -> None:
        """Where the model has a `get_image_features`, images are taken; so are videos, and audio.

        Transformers' models have one for each modality that they embed. A checkpoint whose configuration is None where
        the encoder's would be has none.
        """
        for modality in sorted(SUBPROCESSORS.keys() - set(subject.modalities)):
            encoder = "audio_config" if modality == "audio" else "vision_config"
            if getattr(subject.context.hf_config, encoder, encoder) is None:
                continue
            self.require(
                not hasattr(subject.model, f"get_{modality}_features"),
                "get_supported_mm_limits",
                expected=f"{modality} items taken: the model has get_{modality}_features",
                got=f"{', '.join(subject.modalities) or 'no items'} only",
                fix="take them, or name this rule in exceptions, and say why the adapter does not",
            )

    def test_as_many_items_as_the_reference_takes(self, subject: Subject) -> None:
        """A model takes a limited number of items only where the reference does not place one more.

        The reference places them where it makes as many tokens for each of them as for one alone.
        """
        for modality, limit in subject.hooks.get_supported_mm_limits().items():
            if limit is None or not 0 < limit < COUNTLESS:
                continue
            one, more = (_tokens_of_reference(subject, modality, count) for count in (1, limit + 1))
            self.require(
                not one or more != one * (limit + 1),
                "get_supported_mm_limits",
                expected=f"{limit + 1} {modality}s taken, as by the reference, which makes {more} tokens of them",
                got=f"at most {limit}",
                fix="allow as many (None for any number), or name this rule in exceptions, and say why the model takes "
                "fewer than its processor",
            )

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

    @slow()
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

    def test_dummies_come_in_any_number(self, subject: Subject) -> None:
        """`get_dummy_text` and `get_dummy_mm_data` return as many placeholders and items as `mm_counts` says.

        None of a modality that it does not name.
        """
        for modality in subject.modalities:
            one = subject.placeholder(modality)
            tried = [dict[str, int](), *({modality: count} for count in range(subject.several(modality) + 1))]
            for counts in tried:
                count = counts.get(modality, 0)
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


def _tokens_of_reference(subject: Subject, modality: str, count: int) -> int:
    """Return how many tokens that take embeddings the reference makes for items that are alike; 0 where it fails."""
    items = [subject.alike(modality, seed) for seed in range(count)]
    try:
        output = subject.reference.process("What?" + subject.placeholder(modality) * count, {modality: items}, {})
    except Exception:  # whatever the processor raises: it does not take as many
        return 0
    owner = subject.processor.profile.placeholder_token_ids
    return sum(owner.get(token) == modality for token in token_ids_of(output))

"""The rule about the sizes that an operator plans for: `limit_mm_per_prompt`, the hook's `mm_options`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from corellm_testing.contract.worst_case import TOKENS, WorstCaseRules, dummy_shape, planning_hook, start_search
from corellm_testing.largest import Search, Shape
from corellm_testing.subject import Subject, describe

_KEYS = {"image": ("width", "height"), "video": ("width", "height", "num_frames"), "audio": ("length",)}
"""Names of a `Shape`'s sizes in `mm_options`; a video's rate has none."""


class PlannedSizeRules(WorstCaseRules):
    """Sizes that the operator plans for."""

    def test_the_plan_is_for_the_operators_sizes(self, subject: Subject, searches: Mapping[str, Search]) -> None:
        """With sizes in `limit_mm_per_prompt`, memory is planned for the largest item within them, and no larger one.

        Sizes are also lowered one by one, which changes the ratio of the largest item's sides.
        """
        for modality, before in searches.items():
            largest = dummy_shape(subject, modality, subject.inputs, {})
            if largest is not None:
                for bounds in _bounds(modality, largest):
                    self._plans(subject, before, largest, bounds)

    def _plans(self, subject: Subject, before: Search, largest: Shape, bounds: Mapping[str, int]) -> None:
        """Require a plan for items within bounds."""
        __tracebackhide__ = True
        modality = before.modality
        where = f" where the operator gives limit_mm_per_prompt={ {modality: dict(bounds)} }"
        inputs = subject.fresh(limit_mm_per_prompt={modality: dict(bounds)}, mm_processor_cache_gb=0)
        with self.expecting(f"the dummies are processed{where}", hook="get_dummy_mm_data"):
            profile, dummy = inputs.mm_processor.profile, dummy_shape(subject, modality, inputs, {modality: bounds})
        search = start_search(subject, modality, inputs)
        search.tried = {shape: place for shape, place in before.tried.items() if _is_within(modality, shape, bounds)}
        search.try_all(_shapes_within(modality, largest, bounds))
        item = search.largest(TOKENS)
        if item is None:  # all were refused
            return
        most, planned = search.most(TOKENS), profile.max_tokens[modality]
        self.require(
            most <= planned,
            planning_hook(inputs),
            expected=f"{describe(search.item(item))} becomes at most {planned} tokens, the number for which memory was "
            f"planned{where}",
            got=most,
            fix="make the dummy the item that becomes the most tokens of all within mm_options: with a smaller width "
            "or height alone it has another ratio",
        )
        tokens = next(feature for feature in profile.features if feature.modality == modality).placeholder.length
        self.require(
            dummy is None or _is_within(modality, dummy, bounds) or tokens <= most,
            "get_dummy_mm_data",
            expected=f"a dummy {modality} of at most {most} tokens{where}: no larger one was found within them",
            got=tokens,
            fix="pass the modality's entry of mm_options to dummy_images, dummy_videos or dummy_audios as bounds",
        )


def _bounds(modality: str, largest: Shape) -> Iterator[dict[str, int]]:
    """Yield bounds below the sizes of a dummy: of each size alone, and of all."""
    sizes = dict(zip(_KEYS[modality], largest, strict=False))
    for part in (2, 4):
        lowered = {key: max(1, size // part) for key, size in sizes.items()}
        yield lowered
        if len(lowered) > 1:
            yield from ({key: size} for key, size in lowered.items())


def _is_within(modality: str, shape: Shape, bounds: Mapping[str, int]) -> bool:
    sizes = zip(_KEYS[modality], shape, strict=False)
    return all(size <= bounds.get(key, size) for key, size in sizes)


def _shapes_within(modality: str, largest: Shape, bounds: Mapping[str, int]) -> Iterator[Shape]:
    """Yield shapes within bounds: as large as they allow, smaller, and of the ratio that the dummy has."""
    known: list[Any] = []
    for key, size in zip(_KEYS[modality], largest, strict=False):
        most = bounds.get(key, 2 * size)
        known.append(sorted({most, max(1, most // 2), min([size, most, *bounds.values()])}))
    for sizes in product(*known):
        yield (*sizes, *largest[len(sizes) :])

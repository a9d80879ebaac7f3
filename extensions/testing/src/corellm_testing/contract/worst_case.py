"""Rules about the worst case: for which items memory is planned, and that no item and no argument exceeds the plan."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from operator import attrgetter
from typing import Any
from uuid import uuid4

import pytest

from corellm.config import KWARGS_GROUPS
from corellm.errors import ProcessorKwargsError
from corellm.frontend.input_processor import InputProcessor
from corellm.multimodal.inputs import PlaceholderRange
from corellm.plugin.hook_callers import adapter_implements
from corellm_testing.argument_values import scaled
from corellm_testing.contract.arguments import Argument, ArgumentRules
from corellm_testing.contract.processing import reference_output
from corellm_testing.largest import Count, Search, Shape, likely_shapes, shape_of
from corellm_testing.quick import slow
from corellm_testing.subject import Subject, describe, large_item

TOKENS: Count = attrgetter("length")
EMBEDDINGS: Count = attrgetter("num_embeds")
TRIES = 50
"""Items tried beside the largest so far, by tokens and by embeddings."""
FEW_TRIES = 12
"""The same for each of the operator's arguments."""
LARGEST = 6
"""How many of the largest items of another search, or of transformers' own count, are tried."""
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


class WorstCaseRules(ArgumentRules):
    """The worst case."""

    @pytest.fixture(scope="class")
    @classmethod
    def searches(cls, subject: Subject) -> dict[str, Search]:
        """A search for the largest item of each modality, once for all rules."""
        return {modality: _searched(subject, modality) for modality in subject.modalities}

    def test_the_dummy_is_the_stated_maximum(self, subject: Subject, searches: Mapping[str, Search]) -> None:
        """`get_mm_max_tokens_per_item` states as many tokens as the dummy item takes.

        Memory is planned by the dummy, requests are admitted by the stated number.
        """
        for search in searches.values():
            self._dummy_is_stated(search, subject.inputs, "")

    def test_no_item_exceeds_the_stated_maximum(self, subject: Subject, searches: Mapping[str, Search]) -> None:
        """An item of any size has at most as many tokens and embeddings as planned for, or is refused.

        The largest is searched for, over sizes, ratios, lengths and rates.
        """
        for search in searches.values():
            self._within_plan(subject, search, subject.inputs, "")

    def test_arguments_keep_to_the_plan(
        self,
        subject: Subject,
        searches: Mapping[str, Search],
        processor_arguments: Mapping[str, Sequence[Argument]],
    ) -> None:
        """Whatever a request's arguments, a large item has at most as many embeddings as planned for, or is refused."""
        for modality, search in searches.items():
            planned, largest = subject.processor.profile.max_embeds[modality], search.largest(EMBEDDINGS)
            items = [large_item(subject, modality), *([] if largest is None else [search.item(largest)])]
            own = [{argument.name: value} for argument in processor_arguments[modality] for value in argument.values]
            for item, kwargs in product(items, [*ENLARGING, *own]):
                what = f"{describe(item)} with {dict(kwargs)}"
                for feature in self.taken(subject, modality, item, what, copy.deepcopy(kwargs)):
                    self.require(
                        feature.placeholder.num_embeds <= planned,
                        "call_hf_processor",
                        expected=f"{what} has at most {planned} embeddings",
                        got=feature.placeholder.num_embeds,
                        fix="refuse such an item, or such arguments, with a ProcessorKwargsError",
                    )

    @slow()
    def test_the_plan_follows_the_operators_arguments(
        self,
        subject: Subject,
        searches: Mapping[str, Search],
        processor_arguments: Mapping[str, Sequence[Argument]],
    ) -> None:
        """Arguments given at start that make items larger or smaller make the dummies and the stated maximum so, too.

        Each size, length and rate that the processor takes is raised and lowered.
        """
        for modality, search in searches.items():
            for argument in processor_arguments[modality]:
                for value in _sizes(argument) if argument.name not in self.without_effect else ():
                    if reference_output(subject, argument.parts, {argument.name: value}) is not None:
                        self._follows(subject, search, {argument.name: value})

    def _follows(self, subject: Subject, before: Search, kwargs: Mapping[str, Any]) -> None:
        """Require of a model that is started with arguments that it plans for the largest items they allow."""
        __tracebackhide__ = True
        modality = before.modality
        given = {KWARGS_GROUPS[modality]: kwargs}
        where = f" where the operator gives mm_processor_kwargs={given}"
        with ExitStack() as stack:
            with self.expecting(f"the model starts{where}", hook="get_dummy_mm_data"):
                try:
                    inputs = stack.enter_context(subject.opened(given))
                    planned = inputs.mm_processor.profile.max_tokens[modality]
                except ProcessorKwargsError:  # refused at start: then no item is processed with them
                    return
            search = start_search(subject, modality, inputs)
            search.try_all(before.largest_first(TOKENS, LARGEST))
            for shape in (before.largest(TOKENS), dummy_shape(subject, modality, inputs, {})):
                search.try_all(() if shape is None else search.around(shape))
            search.climb(TOKENS, FEW_TRIES)
            self._within_plan(subject, search, inputs, where)
            if self.test_the_dummy_is_the_stated_maximum.__name__ not in self.exceptions:
                self._dummy_is_stated(search, inputs, where)
            usual = subject.processor.profile.max_tokens[modality]
            most, now = before.most(TOKENS), search.most(TOKENS)
            self.require(
                not now or 2 * now > most or planned < usual,
                planning_hook(inputs),
                expected=f"less than {usual} tokens planned{where}: the largest {modality} becomes {now} instead of "
                f"{most}",
                got=planned,
                fix="compute it from the processor's settings, and from the operator's arguments (context.kwargs_for)",
            )

    def _dummy_is_stated(self, search: Search, inputs: InputProcessor, where: str) -> None:
        """Require the dummy to become as many tokens as are planned for."""
        __tracebackhide__ = True
        modality, profile, most = search.modality, inputs.mm_processor.profile, search.most(TOKENS)
        dummy = next(f for f in profile.features if f.modality == modality).placeholder.length
        planned = profile.max_tokens[modality]
        self.require(
            dummy == planned,
            "get_mm_max_tokens_per_item" if most <= dummy else "get_dummy_mm_data",
            expected=f"a dummy {modality}{where} of {planned} tokens, as stated",
            got=f"{dummy}; the largest {modality} found becomes {most}",
            fix="make the dummy the item that becomes the most tokens, and state that number",
        )

    def _within_plan(self, subject: Subject, search: Search, inputs: InputProcessor, where: str) -> None:
        """Require that memory was planned for the largest item found."""
        __tracebackhide__ = True
        modality, profile = search.modality, inputs.mm_processor.profile
        for shape in search.failed:
            item = search.item(shape)
            self.taken(subject, modality, item, f"{describe(item)}{where}", inputs=inputs)
        plans = {"tokens": (TOKENS, profile.max_tokens), "embeddings": (EMBEDDINGS, profile.max_embeds)}
        for unit, (count, planned) in plans.items():
            largest = search.largest(count)
            if largest is None:  # all were refused: another rule tells
                return
            self.require(
                search.most(count) <= planned[modality],
                planning_hook(inputs),
                expected=f"{describe(search.item(largest))}{where} becomes at most {planned[modality]} {unit}, the "
                "number for which memory was planned",
                got=search.most(count),
                fix="make the dummy the largest item that the processor's settings and the operator's arguments "
                "(context.kwargs_for) allow, or state more in get_mm_max_tokens_per_item, or refuse the item",
            )


def planning_hook(inputs: InputProcessor) -> str:
    """Return the hook that says for how many tokens memory is planned; without it, both that can."""
    stated = adapter_implements(inputs.mm_processor.hooks.get_mm_max_tokens_per_item)
    return "get_mm_max_tokens_per_item" if stated else "get_dummy_mm_data or get_mm_max_tokens_per_item"


# --- searches -------------------------------------------------------------------------------------------------------


def _searched(subject: Subject, modality: str) -> Search:
    """Return a search for the largest item of a modality, done."""
    inputs = subject.fresh(mm_processor_cache_gb=0)
    search = start_search(subject, modality, inputs)
    search.try_all(search.starts(dummy_shape(subject, modality, inputs, {})))
    if modality == "image":
        search.try_all(likely_shapes(subject.context.hf_processor, LARGEST))
    for count in (TOKENS, EMBEDDINGS):
        search.climb(count, TRIES)
    return search


def start_search(subject: Subject, modality: str, inputs: InputProcessor) -> Search:
    """Return a search by an input processor, without an item tried."""

    def place(item: Any) -> PlaceholderRange:
        text, media = subject.prompt(["What?", (modality, item)])
        uuids = {modality: [uuid4().hex]}  # else all of its content is hashed
        (feature,) = subject.process(text, media, inputs=inputs, uuids=uuids).features
        return feature.placeholder

    return Search(modality, subject.sampling_rate if modality == "audio" else 0, place)


def dummy_shape(
    subject: Subject, modality: str, inputs: InputProcessor, mm_options: Mapping[str, Mapping[str, int]]
) -> Shape | None:
    """Return the size of the adapter's dummy; None where its form does not tell."""
    data = inputs.mm_processor.hooks.get_dummy_mm_data(
        seq_len=subject.llm.engine.max_model_len, mm_counts={modality: 1}, mm_options=mm_options
    )
    given = data[modality]
    return shape_of(modality, given[0] if isinstance(given, list) else given)


def _sizes(argument: Argument) -> list[Any]:
    """Return a raised and a lowered value of an argument; none where it is no number, or changes no tensor's shape."""
    outputs = [output for _, output in argument.outputs]
    if len(outputs) == 2 and _shapes(outputs[0]) == _shapes(outputs[1]):
        return []
    known = argument.values if argument.current is None else [argument.current]
    values = [scaled(known[0], 0.5), scaled(known[-1], 2)] if known else []
    return [value for value in values if value is not None]


def _shapes(value: Any) -> Any:
    """Return a value with shapes in the place of tensors."""
    if isinstance(value, Mapping):
        return {name: _shapes(part) for name, part in value.items()}
    return [_shapes(part) for part in value] if isinstance(value, (list, tuple)) else getattr(value, "shape", None)

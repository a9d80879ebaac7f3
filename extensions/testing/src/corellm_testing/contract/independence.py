"""Rules about independence: an item's tensors and placeholder depend on the item and the arguments alone.

Not on other items, their order, caches, threads or earlier requests.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from corellm.config import KWARGS_GROUPS
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.multimodal.fields import group_joinable, join_items, split_items
from corellm_testing.content import content
from corellm_testing.contract.base import ContractRules
from corellm_testing.hook_calls import Request, hook_calls
from corellm_testing.items import annotated_image, forms_of
from corellm_testing.listening import changed_arguments
from corellm_testing.own_tensors import own_tensors
from corellm_testing.subject import Subject, describe, describe_prompt


class IndependenceRules(ContractRules):
    """One item at a time."""

    def test_one_item_is_a_list_of_one(self, subject: Subject) -> None:
        """An item given alone and as a list of one make the same request."""
        for modality in subject.modalities:
            item = subject.item(modality, 1)
            text, media = subject.prompt([(modality, item), "What?"])
            with self.expecting("a bare item, and a list of one", hook="get_data_parser"):
                bare, listed = subject.process(text, {modality: item}), subject.process(text, media)
            self.require(
                _same(bare, listed),
                "get_data_parser",
                expected="the same tokens and tensors",
                got=_difference(bare, listed),
                fix="let the parser's split function make a list of one of a bare item",
            )

    def test_items_do_not_know_of_each_other(self, subject: Subject) -> None:
        """An item becomes the same tensors and placeholder alone and among others, in whatever order they come."""
        inputs = subject.fresh(mm_processor_cache_gb=0)
        items = [(m, subject.item(m, seed)) for m in subject.modalities for seed in range(subject.several(m))]
        twice = [item for item in items for _ in range(subject.several(item[0], 2))]
        for order in (items, items[::-1], items[1:] + items[:1], twice[:2]):
            text, media = subject.prompt([part for item in order for part in (item, " and ")])
            with self.expecting(f"{describe_prompt(order)} is processed"):
                together = subject.process(text, media, inputs=inputs)
            for modality, given_items in media.items():
                features = [feature for feature in together.features if feature.modality == modality]
                self.require(
                    [f.item for f in features] == list(range(len(features))),
                    "get_prompt_updates",
                    expected=f"the {modality}s in the order of their placeholders",
                    got=[f.item for f in features],
                    fix="give updates that take the items in order",
                )
                for feature, item in zip(features, given_items, strict=True):
                    with self.expecting(f"{describe(item)} is processed alone"):
                        (alone,) = subject.process(*subject.prompt([(modality, item), "?"]), inputs=inputs).features
                    same = own_tensors(subject, alone) == own_tensors(subject, feature)
                    place, mask = feature.placeholder, alone.placeholder
                    self.require(
                        same and (place.length, place.is_embed) == (mask.length, mask.is_embed),
                        "call_hf_processor" if not same else "get_prompt_updates",
                        expected=f"{describe(item)} becomes {_shapes(alone.data)} in {mask.length} tokens, as alone",
                        got=f"{_shapes(feature.data)} in {place.length} tokens as {modality} {feature.item} of "
                        f"{describe_prompt(order)}",
                        fix="keep nothing between calls, and take item i's own tensors for placeholder i",
                    )

    def test_cached_equals_uncached(self, subject: Subject) -> None:
        """A repeated request is processed to the same tokens and tensors, from the cache or not."""
        warm, cold = subject.fresh(), subject.fresh(mm_processor_cache_gb=0)
        for modality in subject.modalities:
            text, media = subject.prompt([(modality, subject.item(modality, 2)), "What?"])
            with self.expecting("a request is processed"):
                first, again, uncached = (subject.process(text, media, inputs=i) for i in (warm, warm, cold))
            for other in (again, uncached):
                self.require(
                    _same(first, other),
                    "call_hf_processor",
                    expected="the same tokens and tensors every time",
                    got=_difference(first, other),
                    fix="draw no random numbers, and keep nothing between calls",
                )
        self.require(
            warm.mm_processor.cache.hits >= len(subject.modalities),
            "get_data_parser",
            expected="a hit in the cache",
            got=f"{warm.mm_processor.cache.hits} hits",
            fix="parse the same media to the same content every time",
        )

    def test_fields_divide_and_join(self, subject: Subject) -> None:
        """Items joined into an encoder batch divide into the same items again."""
        for modality in subject.modalities:
            with self.expecting("items are processed"):
                features = [subject.features(modality, subject.item(modality, seed))[0] for seed in (0, 1, 2, 3, 0)]
            for group in group_joinable([feature.data for feature in features]):
                items = [features[i].data for i in group]
                joined = join_items(items)
                with self.expecting("joined tensors are divided", hook="get_mm_fields_config"):
                    fields = subject.hooks.get_mm_fields_config(hf_inputs=joined, mm_kwargs={})
                    again = split_items(joined, fields)[modality]
                self.require(
                    [dict(item) for item in again] == [dict(item) for item in items],
                    "get_mm_fields_config",
                    expected=f"{len(items)} items as they were: {[_shapes(item) for item in items]}",
                    got=[_shapes(item) for item in again],
                    fix="use batched for tensors with an entry per item, flat_from_sizes with the items' own sizes for "
                    "those in which items lie one after another, shared for what all items have in common",
                )

    def test_inputs_are_not_changed(self, subject: Subject) -> None:
        """Media in every form, arguments, prompts, messages and tensors are not modified: others use them, too.

        A hook may write into `inputs_embeds`, and into nothing else that it is given.
        """
        for modality in subject.modalities:
            usual, forms = forms_of(modality, subject.sampling_rate if modality == "audio" else 0)
            if modality == "image":
                forms["a long image with EXIF and a colour profile"] = annotated_image(5000, 40)
            for what, item in {describe(usual): usual, **forms}.items():
                self._leaves_alone(subject, Request.of(subject, modality, item), what)
            if subject.hooks.refuse_embeddings(modality=modality) is None:
                self._leaves_embeddings_alone(subject, modality, usual)
            for kwargs in self.every_argument(subject):
                for given in (kwargs, {KWARGS_GROUPS[modality]: kwargs}):
                    what = f"{describe(usual)} with {given}"
                    if self.taken(subject, modality, usual, what, copy.deepcopy(given)):
                        self._leaves_alone(subject, Request.of(subject, modality, usual, given), what)

    def _leaves_alone(self, subject: Subject, request: Request, what: str) -> None:
        """Require that neither a hook nor the adapter's parser changes anything of a request."""
        __tracebackhide__ = True
        before = content(request)
        with self.expecting(f"{what} goes through the hooks"), changed_arguments(subject) as changed:
            for _, call in hook_calls(subject, request):
                call()
                if changed:  # what is called next may fail of it
                    break
        for hook, argument in changed:
            self.fail(
                hook,
                expected=f"{what}: {argument} as it was given",
                got="the hook wrote into it",
                fix="copy what you change, and what is in it: items, tensors, arguments and messages are the caller's "
                "or the cache's",
            )
        self.require(
            content(request) == before,
            "get_data_parser",
            expected=f"{what} and its request as they were given",
            got="the parser changed them",
            fix="copy what you change: media are the caller's",
        )

    def _leaves_embeddings_alone(self, subject: Subject, modality: str, item: Any) -> None:
        """Require that precomputed embeddings, `item`'s, are not changed."""
        __tracebackhide__ = True
        with self.expecting("an item is embedded, and its embeddings are taken in its place"):
            given = subject.embed(subject.features(modality, item))
            before = content(given)
            subject.process("What?" + subject.placeholder(modality), {f"{modality}_embeds": given})
        self.require(
            content(given) == before,
            "get_data_parser",
            expected="precomputed embeddings as they were given",
            got="the parser changed them",
            fix="copy what you change: embeddings are the caller's",
        )

    def test_two_threads_equal_one(self, subject: Subject) -> None:
        """Requests processed by two threads become the same tokens and tensors as one after another."""
        inputs = subject.fresh(mm_processor_cache_gb=0)
        variants = [{}, *self.arguments(subject)]
        requests = [  # neighbours meet in the two threads: their items differ, and so do their arguments
            (*subject.prompt([(modality, subject.item(modality, seed)), "What?"]), variants[number % len(variants)])
            for shift in range(len(variants))
            for modality in subject.modalities
            for number, seed in enumerate(range(4), shift)
        ]
        with self.expecting("requests are processed, by two threads too"):
            one = [subject.process(*request, inputs=inputs) for request in requests]
            with ThreadPoolExecutor(2) as pool:
                two = list(pool.map(lambda request: subject.process(*request, inputs=inputs), requests * 3))
        for alone, threaded in zip(one * 3, two, strict=True):
            self.require(
                _same(alone, threaded),
                "call_hf_processor",
                expected="the same tokens and tensors",
                got=_difference(alone, threaded),
                fix="keep nothing of a call in the adapter or in the processor",
            )


def _shapes(item: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {tuple(getattr(elem.data, 'shape', ()))}" for name, elem in item.items())


def _same(one: ProcessedPrompt, other: ProcessedPrompt) -> bool:
    return one.token_ids == other.token_ids and one.features == other.features


def _difference(one: ProcessedPrompt, other: ProcessedPrompt) -> str:
    if one.token_ids != other.token_ids:
        return f"{len(one.token_ids)} tokens, then {len(other.token_ids)} other ones"
    return "other tensors or placeholders" if one.features != other.features else "nothing"

"""Rules about processing: text and media become the Hugging Face processor's tokens and tensors, item by item."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corellm.engine.input_processor import ProcessedPrompt
from corellm.errors import ProcessorKwargsError
from corellm.llm import LLM
from corellm.multimodal.defaults import accepted_processor_kwargs
from corellm.multimodal.fields import TEXT_TENSORS, MultiModalKwargsItem, group_joinable, join_items, split_items
from corellm.testing.contract.base import Contract
from corellm.testing.subject import Part, Subject, describe, extreme_items

FEW = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""The same examples every time: a contract is kept or broken, whoever runs it."""

WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="<|", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t"),
    max_size=12,
)
"""Text in which no family's special tokens are."""


class ProcessingRules(Contract):
    """Tokens and tensors."""

    @FEW
    @given(text=WORDS.filter(bool))
    def test_text_alone_equals_the_hf_processor(self, subject: Subject, text: str) -> None:
        """A prompt without media becomes the token ids that the Hugging Face processor gives."""
        want = _ids(subject.reference.process(text, {}, {}))
        with self.expecting("text is processed"):
            got = subject.process(text).token_ids
        self.require(
            got == want,
            "apply_hf_processor_tokens_only",
            expected=want,
            got=got,
            fix="do to the tokens of a prompt without items what the processor does, and nothing else",
        )

    @FEW
    @given(data=st.data())
    def test_text_and_media_equal_the_hf_processor(self, subject: Subject, data: st.DataObject) -> None:
        """Text and items of any size, number and order become the processor's token ids and tensors.

        As text and as token ids alike; every tensor the processor makes is there, bit for bit.
        """
        parts = data.draw(_prompts(subject))
        text, media = subject.prompt(parts)
        want = self._reference(subject, parts, {})
        tokens = subject.context.tokenizer(text)["input_ids"]
        for prompt in (text, tokens):
            with self.expecting(f"{_told(parts)} is processed"):
                got = subject.process(prompt, media)
            self._same_as_reference(subject, parts, got, want, {})

    def test_items_of_any_size_equal_the_hf_processor(self, subject: Subject) -> None:
        """Very small, large and long items become the processor's tensors, too, as far as both take them."""
        for modality in subject.modalities:
            compared = 0
            for item in extreme_items(subject, modality):
                parts: list[Part] = ["What?", (modality, item)]
                if not self.taken(subject, modality, item, describe(item)):
                    continue
                text, media = subject.prompt(parts)
                try:
                    want = subject.reference.process(text, media, {})
                except Exception:  # it does not take them: there is nothing to compare with
                    continue
                with self.expecting(f"{_told(parts)} is processed"):
                    got = subject.process(text, media)
                self._same_as_reference(subject, parts, got, want, {})
                compared += 1
            self.require(
                compared >= 3,
                "call_hf_processor",
                expected=f"most sizes of {modality}s taken, by the reference, too",
                got=f"{compared} of {len(extreme_items(subject, modality))}",
                fix="refuse only what the processor cannot take",
            )

    def test_operators_arguments_hold_for_every_request(self, subject: Subject) -> None:
        """Arguments given when the model is loaded are every request's, as if it had brought them."""
        for kwargs in self.arguments(subject):
            with (
                self.expecting(f"a model loads with {dict(kwargs)}"),
                LLM(str(subject.checkpoint), dtype="float32", mm_processor_kwargs=dict(kwargs)) as llm,
            ):
                for modality in subject.modalities:
                    parts: list[Part] = ["What?", (modality, subject.item(modality, 3))]
                    got = subject.process(*subject.prompt(parts), inputs=llm.engine.input_processor)
                    self._same_as_reference(subject, parts, got, self._reference(subject, parts, kwargs), kwargs)

    def test_processor_arguments_mean_what_they_mean(self, subject: Subject) -> None:
        """A request's `mm_processor_kwargs` change tokens and tensors as they change the Hugging Face processor's.

        Those of all of its items.
        """
        accepted = accepted_processor_kwargs(subject.context.hf_processor)
        for modality in subject.modalities:
            parts: list[Part] = ["What?"]
            for seed in range(subject.several(modality, 2)):
                parts += [(modality, subject.item(modality, 3 + seed)), " "]
            text, media = subject.prompt(parts)
            for kwargs in self.arguments(subject):
                with self.expecting(f"{dict(kwargs)} is accepted", hook="call_hf_processor"):
                    got = subject.process(text, media, kwargs)
                self._same_as_reference(subject, parts, got, self._reference(subject, parts, kwargs), kwargs)
        self.require(
            bool(self.arguments(subject)) or accepted == frozenset(),
            "the contract class",
            expected=f"an example of the arguments that the processor takes: {sorted(accepted or ())}",
            got="processor_kwargs = ()",
            fix="name one or more that change an item's tensors in processor_kwargs",
        )

    def test_unknown_processor_arguments_are_refused(self, subject: Subject) -> None:
        """An argument that the processor does not know is refused, with those that it does."""
        for modality in subject.modalities:
            item = subject.item(modality, 0)
            with self.refusing(
                "call_hf_processor",
                "the argument 'colour_of_the_moon'",
                ProcessorKwargsError,
                words="'colour_of_the_moon'",
                fix="raise ProcessorKwargsError with the accepted names before anything "
                "is processed; the core's default does, as far as the processor says what it takes",
            ):
                subject.features(modality, item, colour_of_the_moon=1)

    def test_one_item_is_a_list_of_one(self, subject: Subject) -> None:
        """An item given alone and as a list of one are the same request."""
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
            with self.expecting(f"{_told(order)} is processed"):
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
                    same = dict(alone.data) == dict(feature.data)
                    place, mask = feature.placeholder, alone.placeholder
                    self.require(
                        same and (place.length, place.is_embed) == (mask.length, mask.is_embed),
                        "call_hf_processor" if not same else "get_prompt_updates",
                        expected=f"{describe(item)} becomes {_shapes(alone.data)} in {mask.length} tokens, as alone",
                        got=f"{_shapes(feature.data)} in {place.length} tokens as {modality} {feature.item} of "
                        f"{_told(order)}",
                        fix="keep nothing between calls, and take item i's own tensors for placeholder i",
                    )

    def test_cached_equals_uncached(self, subject: Subject) -> None:
        """The second time an item comes, from the cache or not, the request becomes the same."""
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
                    fix="say batched for tensors with a row per item, flat_from_sizes with the items' own sizes for "
                    "those in which items lie one after another, shared for what all items have in common",
                )

    def test_inputs_are_not_changed(self, subject: Subject) -> None:
        """Media, arguments, prompts and processed tensors stay as they were: others use them, too."""
        for modality in subject.modalities:
            item = subject.item(modality, 5)
            text, media = subject.prompt([(modality, item), "What?"])
            kwargs = dict(next(iter(self.arguments(subject)), {}))
            tokens = list(subject.context.tokenizer(text)["input_ids"])
            given = (media, kwargs, tokens)
            before = copy.deepcopy(given)
            with self.expecting("a request is processed"):
                features = subject.process(tokens, media, kwargs).features
            self.require(
                _plain(given) == _plain(before),
                "call_hf_processor",
                expected="the request as it was given",
                got="it was changed",
                fix="copy what you change: the item, mm_kwargs and token_ids are the caller's",
            )
            data = copy.deepcopy(dict(features[0].data))
            with self.expecting("the item is embedded"):
                subject.embed(features)
            self.require(
                dict(features[0].data) == data,
                "get_multimodal_embeddings",
                expected="the item's tensors as they were",
                got="the encoder wrote into them",
                fix="do not write into mm_kwargs: the tensors are the cache's",
            )

    def test_two_threads_equal_one(self, subject: Subject) -> None:
        """Requests processed by two threads at a time become what they become one after another."""
        inputs = subject.fresh(mm_processor_cache_gb=0)
        requests = [
            (*subject.prompt([(modality, subject.item(modality, seed)), "What?"]), kwargs)
            for seed in range(4)
            for modality in subject.modalities
            for kwargs in ({}, *self.arguments(subject))
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

    def _reference(self, subject: Subject, parts: Sequence[Part], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What the Hugging Face processor makes of a prompt."""
        fix = (
            "let get_dummy_text write the processor's own placeholder, and get_supported_mm_limits allow no more items "
        )
        fix += "than it takes; where it cannot be called like this, bring a Reference"
        with self.expecting(f"the Hugging Face processor takes {_told(parts)}", hook="get_dummy_text", fix=fix):
            return subject.reference.process(*subject.prompt(parts), kwargs)

    def _same_as_reference(
        self,
        subject: Subject,
        parts: Sequence[Part],
        got: ProcessedPrompt,
        want: Mapping[str, Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Token ids, and every tensor of every item, divided as the adapter itself divides them."""
        __tracebackhide__ = True
        told = _told(parts) + (f" with {dict(kwargs)}" if kwargs else "")
        self.require(
            got.token_ids == _ids(want),
            "get_prompt_updates or apply_hf_processor_tokens_only",
            expected=f"for {told}: {_ids(want)}",
            got=got.token_ids,
            fix="make each item's placeholder as long, and of the same tokens, as the processor makes it; what the "
            "processor does beside placing items belongs into apply_hf_processor_tokens_only",
        )
        if not got.features:
            return
        ignored = {**dict.fromkeys(TEXT_TENSORS, ""), **subject.reference.ignored_tensors}
        tensors = {name: value for name, value in want.items() if name not in ignored and value is not None}
        with self.expecting("the processor's tensors of the whole prompt divide into its items"):
            fields = subject.hooks.get_mm_fields_config(hf_inputs=tensors, mm_kwargs=kwargs)
            divided = split_items(tensors, fields)
        for feature in got.features:
            theirs: MultiModalKwargsItem = divided[feature.modality][feature.item]
            self.require(
                set(theirs) <= set(feature.data),
                "call_hf_processor",
                expected=sorted(theirs),
                got=sorted(feature.data),
                fix="pass on every tensor that the processor gives; one that the model has no use for is named in "
                "Reference.ignored_tensors",
            )
            for name, elem in theirs.items():
                ours = feature.data[name].data
                self.require(
                    subject.reference.same(name, ours, elem.data),
                    "call_hf_processor",
                    expected=f"for {told}: the processor's {name} of {feature.modality} {feature.item}, "
                    f"{tuple(elem.data.shape)}",
                    got=f"{tuple(ours.shape)} {ours.dtype}, {_where_different(ours, elem.data)}",
                    fix="call the processor as it is called with text and media together; change nothing of its output",
                )


@st.composite
def _prompts(draw: st.DrawFn, subject: Subject) -> list[Part]:
    """Text and items, in any order, no more than the model takes."""
    left = {modality: subject.several(modality) for modality in subject.modalities}
    parts: list[Part] = draw(st.sampled_from([["x"], []]))
    for _ in range(draw(st.integers(1, 5))):
        choices = [m for m, count in left.items() if count]
        kind = draw(st.sampled_from(["text", *choices]))
        if kind == "text":
            parts.append(draw(WORDS))
        else:
            left[kind] -= 1
            parts.append((kind, subject.item(kind, draw(st.integers(0, 500)))))
    return parts if any(parts) else ["x"]  # a prompt may be without text, not without anything


def _ids(output: Mapping[str, Any]) -> list[int]:
    ids = output["input_ids"]
    flat: list[int] = list(ids[0] if hasattr(ids[0], "__len__") else ids)
    return [int(token) for token in flat]


def _told(parts: Sequence[Part]) -> str:
    return " ".join(repr(part) if isinstance(part, str) else f"[{describe(part[1])}]" for part in parts)


def _shapes(item: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {tuple(getattr(elem.data, 'shape', ()))}" for name, elem in item.items())


def _where_different(ours: Any, theirs: Any) -> str:
    if ours.shape != theirs.shape:
        return "of another shape"
    return f"different by up to {float((ours.double() - theirs.double()).abs().max()):.3g}"


def _same(one: ProcessedPrompt, other: ProcessedPrompt) -> bool:
    return one.token_ids == other.token_ids and one.features == other.features


def _difference(one: ProcessedPrompt, other: ProcessedPrompt) -> str:
    if one.token_ids != other.token_ids:
        return f"{len(one.token_ids)} tokens, then {len(other.token_ids)} other ones"
    return "other tensors or placeholders" if one.features != other.features else "nothing"


def _plain(value: Any) -> Any:
    """Content to compare: pictures and arrays as bytes."""
    if isinstance(value, dict):
        return {key: _plain(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    return (str(type(value)), getattr(value, "size", 0), value.tobytes()) if hasattr(value, "tobytes") else value

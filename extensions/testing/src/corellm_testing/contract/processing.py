"""Rules about processing: text and media become the Hugging Face processor's tokens and tensors, item by item."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from corellm.frontend.input_processor import ProcessedPrompt
from corellm.media.type_checks import is_tensor
from corellm.multimodal.fields import TEXT_TENSORS, MultiModalKwargsItem, split_items
from corellm.multimodal.nested import shape_of
from corellm.plugin.hook_callers import adapter_implements
from corellm_testing.contract.base import FEW, ContractRules
from corellm_testing.items import edged_items, plain_items
from corellm_testing.reference import token_ids_of
from corellm_testing.subject import Part, Subject, describe, describe_prompt, extreme_items

WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="<|", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t"),
    max_size=12,
)
"""Text without any family's special tokens."""
ODD_TEXTS = (
    "Cafe\u0301 A\u030a \u1112\u1161\u11ab",
    "\uff26\uff55\uff4c\uff4c \ufb01n \u2163 x\u00b2",
    "soft\u00adhyphen, zero\u200bwidth, no\u00a0break, \u202eturned",
    "one\r\ntwo\rthree\n\n\n\nfour",
    "a\tb\t\tc  d     e",
    "  before and behind  ",
    "\n\tWhat?\n",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1eb\U0001f1f7",
    "<s >, < /s>, <im_start>, <image_1>, [INST], <0x4>, <|",
    "It's 'quoted', he'll say ... no . Yes !",
)
"""Accents of their own, wide letters, marks without width, ends of lines, white space, emoji, almost special tokens."""


class ProcessingRules(ContractRules):
    """Tokens and tensors."""

    @FEW
    @given(text=WORDS.filter(bool))
    def test_text_alone_equals_the_hf_processor(self, subject: Subject, text: str) -> None:
        """A prompt without media becomes the token ids that the Hugging Face processor gives."""
        want = self.of_reference(subject, [text], {})
        with self.expecting("text is processed"):
            got = subject.process(text)
        self.same_as_reference(subject, [text], got, want, {})

    def test_odd_text_equals_the_hf_processor(self, subject: Subject) -> None:
        """Text of any characters, and of tokens that the processor itself adds or removes, becomes its token ids.

        Alone and beside an item, once and twice, at the beginning and at the end, as text and as token ids. A prompt
        that ends as the adapter would end it is complete, whatever the processor makes of it.
        """
        for modality in (None, *subject.modalities):
            item: list[Part] = [(modality, subject.item(modality, 7))] if modality is not None else []
            with self.expecting("a prompt is processed", hook="apply_hf_processor_tokens_only"):
                own, end = _own_tokens(subject, item)
            edges = [text * n for text in own for n in (1, 2)]
            texts = [*ODD_TEXTS, *(f"{edge}What?" for edge in edges), *(f"What?{edge}" for edge in edges), *edges]
            for text in texts:
                for parts in ([*item, text], [text, *item]) if item else ([text],):
                    ids = subject.context.tokenizer(subject.prompt(parts)[0])["input_ids"]
                    if not end or ids[-1:] != end:
                        self._equals_where_taken(subject, parts)

    def _equals_where_taken(self, subject: Subject, parts: Sequence[Part]) -> None:
        """Require the reference's token ids and tensors of a prompt, as text and as ids, where it takes the prompt."""
        __tracebackhide__ = True
        want = reference_output(subject, parts, {})
        if want is None:
            return
        text, media = subject.prompt(parts)
        for prompt in (text, subject.context.tokenizer(text)["input_ids"]):
            with self.expecting(f"{describe_prompt(parts)} is processed", hook="apply_hf_processor_tokens_only"):
                got = subject.process(prompt, media)
            self.same_as_reference(subject, parts, got, want, {})

    @FEW
    @given(data=st.data())
    def test_text_and_media_equal_the_hf_processor(self, subject: Subject, data: st.DataObject) -> None:
        """Text and items of any size, number and order become the processor's token ids and tensors.

        As text and as token ids alike; every tensor the processor makes is there, bit for bit.
        """
        parts = data.draw(_prompts(subject))
        text, media = subject.prompt(parts)
        want = self.of_reference(subject, parts, {})
        tokens = subject.context.tokenizer(text)["input_ids"]
        for prompt in (text, tokens):
            with self.expecting(f"{describe_prompt(parts)} is processed"):
                got = subject.process(prompt, media)
            self.same_as_reference(subject, parts, got, want, {})

    def test_an_item_alone_equals_the_hf_processor(self, subject: Subject) -> None:
        """An item without any text becomes the processor's token ids and tensors, where it takes that."""
        for modality in subject.modalities:
            self._equals_where_taken(subject, [(modality, subject.item(modality, 7))])

    def test_a_complete_prompt_stays_as_it_is(self, subject: Subject) -> None:
        """Token ids that already have what the processor adds, before, behind or around, do not get it twice.

        Such are a conversation's prompt, and token ids that were made by the processor.
        """
        prompts: list[list[Part]] = [["x"], ["What is this?\nA circle"]]
        prompts += [[(modality, subject.item(modality, 2)), "What?"] for modality in subject.modalities]
        for parts in prompts:
            text, media = subject.prompt(parts)
            counts = {modality: len(items) for modality, items in media.items()}
            with self.expecting(f"{describe_prompt(parts)} is processed, as text and as token ids"):
                want = subject.process(text, media).token_ids
                complete = subject.processor.unexpanded(subject.context.tokenizer(text)["input_ids"], counts)
                got = subject.process(complete, media).token_ids
            self.require(
                got == want,
                "apply_hf_processor_tokens_only",
                expected=f"for {describe_prompt(parts)}, as the token ids {complete}: {want}",
                got=got,
                fix="add a token only where the prompt does not have it yet, at its end or its beginning",
            )

    def test_items_of_any_size_equal_the_hf_processor(self, subject: Subject) -> None:
        """Very small, large and long items become the processor's tensors, too, where both take them."""
        for modality in subject.modalities:
            compared = 0
            for item in extreme_items(subject, modality):
                parts: list[Part] = ["What?", (modality, item)]
                if not self.taken(subject, modality, item, describe(item)):
                    continue
                want = reference_output(subject, parts, {})
                if want is None:
                    continue
                with self.expecting(f"{describe_prompt(parts)} is processed"):
                    got = subject.process(*subject.prompt(parts))
                self.same_as_reference(subject, parts, got, want, {})
                compared += 1
            self.require(
                compared >= 3,
                "call_hf_processor",
                expected=f"most sizes of {modality}s taken, by the reference, too",
                got=f"{compared} of {len(extreme_items(subject, modality))}",
                fix="refuse only what the processor cannot take",
            )

    def test_plain_items_equal_the_hf_processor(self, subject: Subject) -> None:
        """Black items, those of one colour, silence and plain edges become the processor's tensors, by any argument.

        Values of zero are not padding, be they pixels or, with `do_normalize=False`, what the encoder gets.
        """
        for modality in subject.modalities:
            rate = subject.sampling_rate if modality == "audio" else 0
            for what, item in {**plain_items(modality, rate), **edged_items(modality, rate)}.items():
                parts: list[Part] = [f"{what}: ", (modality, item)]
                for kwargs in self.every_argument(subject):
                    if kwargs and not self.taken(subject, modality, item, f"{what} with {dict(kwargs)}", kwargs):
                        continue
                    with self.expecting(f"{what} is processed", fix="take zeros as any other values"):
                        got = subject.process(*subject.prompt(parts), kwargs)
                    self.same_as_reference(subject, parts, got, self.of_reference(subject, parts, kwargs), kwargs)

    def of_reference(self, subject: Subject, parts: Sequence[Part], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Hugging Face processor's tensors for a prompt."""
        hook, fix = "the contract class", "bring a Reference that tokenizes text where the processor wants media"
        if not all(isinstance(part, str) for part in parts):
            hook = "get_dummy_text, get_supported_mm_limits or the contract class"
            fix = (
                "let get_dummy_text write the processor's own placeholder, and get_supported_mm_limits allow no more "
                "items than it takes; where it cannot be called like this, bring a Reference"
            )
        with self.expecting(f"the Hugging Face processor takes {describe_prompt(parts)}", hook=hook, fix=fix):
            try:
                return subject.reference.process(*subject.prompt(parts), kwargs)
            except Exception:
                self._refuse_number(subject, parts, kwargs)
                raise

    def _refuse_number(self, subject: Subject, parts: Sequence[Part], kwargs: Mapping[str, Any]) -> None:
        """Break the rule for the number of items where the reference takes a prompt with one item of each modality."""
        __tracebackhide__ = True
        counts = Counter(part[0] for part in parts if not isinstance(part, str))
        several = any(count > 1 for count in counts.values())
        if several and reference_output(subject, _one_of_each(parts), kwargs) is not None:
            self.fail(
                "get_supported_mm_limits",
                expected=f"as many items as the Hugging Face processor takes, such as in {describe_prompt(parts)}",
                got=f"it takes one of each modality, and refuses {dict(counts)}",
                fix="allow no more items of a modality than the processor takes",
            )

    def same_as_reference(
        self,
        subject: Subject,
        parts: Sequence[Part],
        got: ProcessedPrompt,
        want: Mapping[str, Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Require the reference's token ids, and its tensors divided into items by the adapter's own fields."""
        __tracebackhide__ = True
        described = describe_prompt(parts) + (f" with {dict(kwargs)}" if kwargs else "")
        if got.features:  # before the tokens, which depend on them
            self._same_tensors(subject, described, got, want, kwargs)
        hook = "apply_hf_processor_tokens_only"
        if got.features:
            hook = f"get_prompt_updates or {hook}" + (" or get_mm_kwargs_names" if kwargs else "")
        elif got.token_ids != token_ids_of(want):
            self._same_text(subject, "".join(map(str, parts)), got.token_ids, token_ids_of(want))
        self.require(
            got.token_ids == token_ids_of(want),
            hook,
            expected=f"for {described}: {token_ids_of(want)}",
            got=got.token_ids,
            fix="make each item's placeholder as long, and of the same tokens, as the processor makes it; what the "
            "processor does beside placing items belongs into apply_hf_processor_tokens_only, every argument that an "
            "item depends on into get_mm_kwargs_names",
        )

    def _same_text(self, subject: Subject, text: str, got: Sequence[int], want: Sequence[int]) -> None:
        """Require the tokenizer's own tokens of a text to be the reference's, special ones aside."""
        __tracebackhide__ = True
        special = subject.special_token_ids
        ids = subject.context.tokenizer(text)["input_ids"]
        own, processed, theirs = ([token for token in given if token not in special] for given in (ids, got, want))
        hook = tokenizers_hook(self.adapter)
        self.require(
            own == theirs,
            hook if processed == own else f"{hook} or apply_hf_processor_tokens_only",
            expected=f"for {text!r}: {want}",
            got=f"{ids} from the tokenizer",
            fix="keep the normalizer, the pre-tokenizer and the merges of the checkpoint's tokenizer.json, or of the "
            "files that stand for it; a hook that changes context.tokenizer changes it for all texts",
        )

    def _same_tensors(
        self,
        subject: Subject,
        described: str,
        got: ProcessedPrompt,
        want: Mapping[str, Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Require the reference's tensors, divided into items by the adapter's own fields."""
        __tracebackhide__ = True
        before = ("register_processor", "get_data_parser")  # what call_hf_processor works with
        names = [name for name in before if adapter_implements(getattr(subject.hooks, name))]
        hook = " or ".join([*names, "call_hf_processor", *(["get_mm_kwargs_names"] if kwargs else [])])
        ignored = {**dict.fromkeys(TEXT_TENSORS, ""), **subject.reference.ignored_tensors}
        tensors = {name: value for name, value in want.items() if name not in ignored and value is not None}
        what = "the processor's tensors of the whole prompt divide into its items"
        with self.expecting(what, hook="get_mm_fields_config"):
            fields = subject.hooks.get_mm_fields_config(hf_inputs=tensors, mm_kwargs=kwargs)
            divided = split_items(tensors, fields)
        counts = {modality: len(items) for modality, items in divided.items()}
        given = dict(Counter(feature.modality for feature in got.features))
        self.require(
            counts == given,
            "get_mm_fields_config or get_supported_mm_limits",
            expected=f"for {described}: {what}: {given}",
            got=counts,
            fix="use batched or flat_from_sizes for what differs from item to item; what all items share is shared by "
            "as many items as hf_inputs has; take no more items than the processor does",
        )
        for feature in got.features:
            theirs: MultiModalKwargsItem = divided[feature.modality][feature.item]
            self.require(
                set(theirs) <= set(feature.data),
                hook,
                expected=sorted(theirs),
                got=sorted(feature.data),
                fix="pass on every tensor that the processor gives; one that the model has no use for is named in "
                "Reference.ignored_tensors",
            )
            for name, elem in theirs.items():
                what = f"for {described}: the processor's {name} of {feature.modality} {feature.item}"
                has_others = given[feature.modality] > 1
                self._same_tensor(subject, hook, what, name, feature.data[name].data, elem.data, has_others=has_others)

    def _same_tensor(
        self, subject: Subject, hook: str, what: str, name: str, ours: Any, theirs: Any, *, has_others: bool
    ) -> None:
        """Require an item's value to be the processor's; `has_others` says whether it shares the prompt with others."""
        __tracebackhide__ = True
        with self.expecting(
            f"{name} can be compared with the processor's",
            hook="the contract class",
            fix="let Reference.same compare what this tensor is, and nothing else",
        ):
            if subject.reference.same(name, ours, theirs):
                return
        expected = f"{what}, {shape_of(theirs)}"
        if has_others and _is_filled(ours, theirs):
            self.fail(
                "the contract class",
                expected=expected,
                got=f"{shape_of(ours)}, the same without the zeros at the end: the processor fills items up to the "
                "largest of a prompt, and an adapter processes each alone",
                fix="let `same` of a subclass of Reference, the contract class's reference, compare the item's own "
                "part, and require that zeros follow it",
            )
        self.fail(
            hook,
            expected=expected,
            got=f"{shape_of(ours)}, {_where_different(ours, theirs)}",
            fix="make the processor with all settings of the checkpoint, call it as it is called with text and media "
            "together, with every argument that the item depends on, and change nothing of its output",
        )


@st.composite
def _prompts(draw: st.DrawFn, subject: Subject) -> list[Part]:
    """Draw text and items in any order, no more items than the model takes."""
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


def _own_tokens(subject: Subject, item: Sequence[Part]) -> tuple[list[str], list[int]]:
    """Return the tokens, as text, that a prompt has more often or less often after processing than as plain text.

    By the tokenizer, by the adapter's hook or by the reference; without those that take embeddings. And the id of the
    token with which the hook ends a prompt, or nothing.
    """
    parts = [*item, "What?"]
    text, media = subject.prompt(parts)
    tokenizer = subject.context.tokenizer
    plain = Counter[int](tokenizer(text, add_special_tokens=False)["input_ids"])
    ids = tokenizer(text)["input_ids"]
    hooked = subject.processor.unexpanded(ids, {name: len(items) for name, items in media.items()})
    processed = subject.process(text, media)
    taking = {
        token for token, takes in zip(processed.token_ids, subject.embed_mask(processed).tolist(), strict=True) if takes
    }
    changed = set[int]()
    want = reference_output(subject, parts, {})  # none of text alone where the processor wants media
    for found in (ids, hooked, ids if want is None else token_ids_of(want)):
        counted = Counter[int](found)
        changed.update((counted - plain).keys() | (plain - counted).keys())
    own = sorted(changed - taking)
    # in both forms: a line's end is named `Ċ` by some tokenizers, and <0x04> is text for others
    texts = [*tokenizer.convert_ids_to_tokens(own), *(subject.decoded([token]) for token in own)]
    return list(dict.fromkeys(filter(None, texts))), hooked[-1:] if hooked[-1:] != ids[-1:] else []


def _one_of_each(parts: Sequence[Part]) -> list[Part]:
    """Return parts of a prompt without all items but the first of each modality."""
    items = [part for part in parts if not isinstance(part, str)]
    first = {modality: id(item) for modality, item in reversed(items)}
    return [part for part in parts if isinstance(part, str) or id(part[1]) == first[part[0]]]


def tokenizers_hook(adapter: type[Any]) -> str:
    """Return what to look at where the tokenizer of an adapter's model is another one than the reference's."""
    return "register_tokenizer" if hasattr(adapter, "register_tokenizer") else "context.tokenizer"


def reference_output(subject: Subject, parts: Sequence[Part], kwargs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the reference's output, or None where it fails."""
    try:
        return subject.reference.process(*subject.prompt(parts), copy.deepcopy(kwargs))
    except Exception:  # whatever the processor raises: there is nothing to compare with
        return None


def _is_filled(ours: Any, theirs: Any) -> bool:
    """Whether a tensor is another one with nothing but zeros after it, in whichever dimensions."""
    if not is_tensor(ours) or not is_tensor(theirs) or ours.dtype != theirs.dtype or ours.ndim != theirs.ndim:
        return False
    if ours.shape == theirs.shape or any(a > b for a, b in zip(ours.shape, theirs.shape, strict=True)):
        return False
    own = theirs[tuple(slice(length) for length in ours.shape)]
    return bool((own == ours).all()) and int((own != 0).sum()) == int((theirs != 0).sum())


def _where_different(ours: Any, theirs: Any) -> str:
    if not is_tensor(ours) or not is_tensor(theirs):
        return f"{ours!r:.60} instead of {theirs!r:.60}"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype} of another shape or dtype than {theirs.dtype}"
    return f"different by up to {float((ours.double() - theirs.double()).abs().max()):.3g}"

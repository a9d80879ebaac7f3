"""Rules about processing: text and media become the Hugging Face processor's tokens and tensors, item by item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from corellm.engine.input_processor import ProcessedPrompt
from corellm.media.type_checks import is_tensor
from corellm.multimodal.fields import TEXT_TENSORS, MultiModalKwargsItem, split_items
from corellm.multimodal.nested import shape_of
from corellm.testing.contract.base import FEW, ContractRules
from corellm.testing.items import plain_items
from corellm.testing.reference import token_ids_of
from corellm.testing.subject import Part, Subject, describe, describe_prompt, extreme_items

WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="<|", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t"),
    max_size=12,
)
"""Text without any family's special tokens."""


class ProcessingRules(ContractRules):
    """Tokens and tensors."""

    @FEW
    @given(text=WORDS.filter(bool))
    def test_text_alone_equals_the_hf_processor(self, subject: Subject, text: str) -> None:
        """A prompt without media becomes the token ids that the Hugging Face processor gives."""
        want = token_ids_of(self.of_reference(subject, [text], {}))
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
        want = self.of_reference(subject, parts, {})
        tokens = subject.context.tokenizer(text)["input_ids"]
        for prompt in (text, tokens):
            with self.expecting(f"{describe_prompt(parts)} is processed"):
                got = subject.process(prompt, media)
            self.same_as_reference(subject, parts, got, want, {})

    def test_items_of_any_size_equal_the_hf_processor(self, subject: Subject) -> None:
        """Very small, large and long items become the processor's tensors, too, where both take them."""
        for modality in subject.modalities:
            compared = 0
            for item in extreme_items(subject, modality):
                parts: list[Part] = ["What?", (modality, item)]
                if not self.taken(subject, modality, item, describe(item)):
                    continue
                text, media = subject.prompt(parts)
                try:
                    want = subject.reference.process(text, media, {})
                except Exception:  # the reference refuses the item: nothing to compare with
                    continue
                with self.expecting(f"{describe_prompt(parts)} is processed"):
                    got = subject.process(text, media)
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
        """Black items, those of one colour and silence become the processor's tensors, with every argument, too.

        Values of zero are not padding, be they pixels or, with `do_normalize=False`, what the encoder gets.
        """
        for modality in subject.modalities:
            rate = subject.sampling_rate if modality == "audio" else 0
            for what, item in plain_items(modality, rate).items():
                parts: list[Part] = [f"{what}: ", (modality, item)]
                for kwargs in self.every_argument(subject):
                    if kwargs and not self.taken(subject, modality, item, f"{what} with {dict(kwargs)}", kwargs):
                        continue
                    with self.expecting(f"{what} is processed", fix="take zeros as any other values"):
                        got = subject.process(*subject.prompt(parts), kwargs)
                    self.same_as_reference(subject, parts, got, self.of_reference(subject, parts, kwargs), kwargs)

    def of_reference(self, subject: Subject, parts: Sequence[Part], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Hugging Face processor's tensors for a prompt."""
        fix = (
            "let get_dummy_text write the processor's own placeholder, and get_supported_mm_limits allow no more items "
            "than it takes; where it cannot be called like this, bring a Reference"
        )
        with self.expecting(
            f"the Hugging Face processor takes {describe_prompt(parts)}", hook="get_dummy_text", fix=fix
        ):
            return subject.reference.process(*subject.prompt(parts), kwargs)

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
        self.require(
            got.token_ids == token_ids_of(want),
            "get_prompt_updates or apply_hf_processor_tokens_only" + (" or get_mm_kwargs_names" if kwargs else ""),
            expected=f"for {described}: {token_ids_of(want)}",
            got=got.token_ids,
            fix="make each item's placeholder as long, and of the same tokens, as the processor makes it; what the "
            "processor does beside placing items belongs into apply_hf_processor_tokens_only, every argument that an "
            "item depends on into get_mm_kwargs_names",
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
        hook = "call_hf_processor" + (" or get_mm_kwargs_names" if kwargs else "")
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
                "call_hf_processor",
                expected=sorted(theirs),
                got=sorted(feature.data),
                fix="pass on every tensor that the processor gives; one that the model has no use for is named in "
                "Reference.ignored_tensors",
            )
            for name, elem in theirs.items():
                ours = feature.data[name].data
                with self.expecting(
                    f"{name} can be compared with the processor's",
                    hook="the contract class",
                    fix="let Reference.same compare what this tensor is, and nothing else",
                ):
                    same = subject.reference.same(name, ours, elem.data)
                self.require(
                    same,
                    hook,
                    expected=f"for {described}: the processor's {name} of {feature.modality} {feature.item}, "
                    f"{shape_of(elem.data)}",
                    got=f"{shape_of(ours)}, {_where_different(ours, elem.data)}",
                    fix="call the processor as it is called with text and media together, with every argument that the "
                    "item depends on, and change nothing of its output",
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


def _where_different(ours: Any, theirs: Any) -> str:
    if not is_tensor(ours) or not is_tensor(theirs):
        return f"{ours!r:.60} instead of {theirs!r:.60}"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype} of another shape or dtype than {theirs.dtype}"
    return f"different by up to {float((ours.double() - theirs.double()).abs().max()):.3g}"

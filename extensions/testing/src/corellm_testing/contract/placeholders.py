"""Rules about placeholders: an item takes its own placeholder or is refused, whatever the prompt says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from corellm.errors import AlreadyExpandedError, MissingPlaceholderError, PlaceholderError, RequestError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.sampling_params import SamplingParams
from corellm_testing.contract.same_outputs import SameOutputRules
from corellm_testing.subject import Subject

TOKENS = 4
"""Number of tokens of each output."""
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, min_tokens=TOKENS, logprobs=0)


class PlaceholderRules(SameOutputRules):
    """Prompts and items."""

    def test_missing_placeholders_are_refused(self, subject: Subject) -> None:
        """More items than placeholders are refused, and the engine serves on.

        A family that inserts items by position has no placeholders: there the items are placed.
        """
        for modality in subject.modalities:
            items = [subject.item(modality, seed) for seed in range(subject.several(modality, 2))]
            if not subject.placeholder(modality):
                with self.expecting("items without placeholders are placed by position"):
                    features = subject.process("What?", {modality: items}).features
                self.require(
                    len(features) == len(items),
                    "get_prompt_updates",
                    expected=f"{len(items)} placeholders",
                    got=len(features),
                    fix="give an update for every item",
                )
                continue
            for written in range(len(items)):
                prompt = {
                    "prompt": "What?" + subject.placeholder(modality) * written,
                    "multi_modal_data": {modality: items},
                }
                with (
                    self._serves_on(subject),
                    self.refusing(
                        "get_prompt_updates",
                        f"{len(items)} {modality}s for {written} placeholders",
                        MissingPlaceholderError,
                        fix="let the update's target be what get_dummy_text writes, and nothing else",
                    ),
                ):
                    subject.llm.generate(prompt, GREEDY, use_tqdm=False)

    def test_surplus_placeholders_are_refused(self, subject: Subject) -> None:
        """More placeholders than items, or a placeholder's token without an item, are refused; the engine serves on."""
        for modality in subject.modalities:
            item = subject.item(modality, 0)
            with self.expecting("an item is processed"):
                surplus = subject.placeholder(modality) or subject.embedding_token(modality)
            for text, media in ((surplus, {}), (subject.placeholder(modality) + "or" + surplus, {modality: [item]})):
                with (
                    self._serves_on(subject),
                    self.refusing(
                        "get_prompt_updates",
                        f"the prompt {text!r} with {len(media)} items",
                        PlaceholderError,
                        fix="name the tokens that take embeddings by PromptUpdateDetails.select_token_id, so that the "
                        "core knows them; let the hook be called without items, for its targets",
                    ),
                ):
                    subject.llm.generate({"prompt": text, "multi_modal_data": media}, GREEDY, use_tqdm=False)

    def test_expanded_prompts_are_refused(self, subject: Subject) -> None:
        """A prompt that a Hugging Face processor has expanded is refused, not expanded again; the engine serves on."""
        for modality in subject.modalities:
            media = {modality: [subject.item(modality, 0)]}
            with self.expecting("an item is processed"):
                processed = subject.process(subject.prompt([(modality, media[modality][0]), "What?"])[0], media)
            expanded = processed.token_ids
            if processed.features[0].placeholder.num_states is not None:  # in the prompt it may be what a user writes
                continue
            prompt = {"prompt_token_ids": expanded, "multi_modal_data": media}
            with (
                self._serves_on(subject),
                self.refusing(
                    "get_prompt_updates",
                    "an expanded prompt with its item",
                    AlreadyExpandedError,
                    fix="let the content hold the token that takes embeddings more often than the target does",
                ),
            ):
                subject.llm.generate(prompt, GREEDY, use_tqdm=False)

    @contextmanager
    def _serves_on(self, subject: Subject) -> Iterator[None]:
        """Require the same output of a good request before and after the error inside."""
        modality = subject.modalities[0]
        text, media = subject.prompt([(modality, subject.item(modality, 4)), "What?"])

        def generate() -> list[int]:
            with self.expecting("a good request is served"):
                (output,) = subject.llm.generate({"prompt": text, "multi_modal_data": media}, GREEDY, use_tqdm=False)
            return list(output.outputs[0].token_ids)

        before = generate()
        yield
        after = generate()
        self.require(
            after == before,
            "the adapter",
            expected=f"the same output after the error: {before}",
            got=after,
            fix="change nothing before everything is checked",
        )

    def test_masks_follow_token_ids(self, subject: Subject) -> None:
        """In a placeholder, all tokens of one id take embeddings, or none does: the core tells them apart by id."""
        for modality in subject.modalities:
            for seed in range(3):
                with self.expecting("an item is processed"):
                    processed = subject.process(*subject.prompt([(modality, subject.item(modality, seed)), "?"]))
                place = processed.features[0].placeholder
                span = processed.token_ids[place.offset : place.end]
                mask = place.is_embed or (True,) * place.length
                filled = {token for token, embeds in zip(span, mask, strict=True) if embeds}
                both = filled & {token for token, embeds in zip(span, mask, strict=True) if not embeds}
                self.require(
                    not both,
                    "get_prompt_updates",
                    expected=f"tokens that take embeddings and others, of different ids: {span}",
                    got=f"{sorted(both)} both ways",
                    fix="say which tokens take embeddings with PromptUpdateDetails.select_token_id",
                )

    def test_positions(self, subject: Subject) -> None:
        """Every prompt token has a position, and the first generated token's is one more than the largest of them."""
        for modality in subject.modalities:
            for seed in range(3):
                parts = [
                    "What is",
                    *[(modality, subject.item(modality, 10 * seed + i)) for i in range(subject.several(modality, 2))],
                    "?",
                ]
                with self.expecting("positions for a prompt with items"):
                    processed = subject.process(*subject.prompt(_separated(parts)))
                    result = subject.hooks.get_rope_positions(
                        model=subject.model, token_ids=processed.token_ids, mm_features=processed.features
                    )
                if result is None:
                    continue
                positions, offset = result
                length = self._require_positions(processed, positions)
                first, largest = length + int(offset), int(positions.max())
                self.require(
                    first == largest + 1,
                    "get_rope_positions",
                    expected=f"{largest + 1} for the first generated token",
                    got=f"{first} = {length} prompt tokens + offset {offset}",
                    fix="return max(positions) + 1 - len(token_ids) as the offset",
                )

    def test_items_side_by_side(self, subject: Subject) -> None:
        """Two items without a text between them become what the reference makes of them, or are refused as by it.

        Of one modality or of two, written as placeholders, before a text and at the end, and as the tokens alone that
        take embeddings, before a text: transformers goes on from those with positions of its own.
        """
        for one, other in itertools.product(subject.modalities, repeat=2):
            if one == other and subject.several(one, 2) < 2:
                continue
            media: dict[str, list[Any]] = {}
            for seed, modality in enumerate((one, other)):
                media.setdefault(modality, []).append(subject.item(modality, seed))
            placeholders = subject.placeholder(one) + subject.placeholder(other)
            tokens = subject.embedding_token(one) + subject.embedding_token(other)
            for text in (f"{placeholders}What?", placeholders, f"{tokens}What?"):
                self._stand_side_by_side(subject, text, media)

    def _stand_side_by_side(self, subject: Subject, text: str, media: Mapping[str, list[Any]]) -> None:
        """Require a prompt to have the reference's tokens and continuation, or to be refused where it has none."""
        __tracebackhide__ = True
        what, fix = f"{text!r} with {', '.join(media)}", "refuse what the model has no positions for, and nothing else"
        try:
            want = subject.reference.generate(text, media, {}, TOKENS)
        except Exception:  # the reference does not take them: nothing to compare with
            want = None
        expected = f"{what} is taken" if want else f"{what} is taken, or refused with a RequestError"
        with self.expecting(expected, hook="get_rope_positions", fix=fix):
            try:
                processed = subject.process(text, media)
                result = subject.hooks.get_rope_positions(
                    model=subject.model, token_ids=processed.token_ids, mm_features=processed.features
                )
            except RequestError:
                if want is None:
                    return
                raise
            if result is not None:
                self._require_positions(processed, result[0])
            request = {"prompt": text, "multi_modal_data": media}
            (output,) = subject.llm.generate(request, GREEDY, use_tqdm=False)
        if want is not None:
            self.equal(subject, output, want, what, with_items=True, otherwise=fix)

    def _require_positions(self, processed: ProcessedPrompt, positions: Any) -> int:
        """Require a position for each token of a prompt; return the number of tokens."""
        __tracebackhide__ = True
        length = len(processed.token_ids)
        self.require(
            positions.ndim in (1, 2) and positions.shape[-1] == length and not positions.is_floating_point(),
            "get_rope_positions",
            expected=f"integers [{length}] or [axes, {length}]",
            got=f"{positions.dtype} {tuple(positions.shape)}",
            fix="give a position for every token of the prompt",
        )
        return length


def _separated(parts: list[Any]) -> list[Any]:
    return [piece for part in parts for piece in (part, " ")]

"""Rules about embeddings: encoder batches, merging into prompts in any chunks, and precomputed embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from corellm.errors import CorellmError, EmbeddingInputError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.multimodal.fields import group_joinable
from corellm.multimodal.inputs import MultiModalFeature
from corellm.sampling_params import SamplingParams
from corellm_testing.contract.base import FEW, ContractRules
from corellm_testing.subject import Subject, describe, extreme_items

TOLERANCE = 1e-5
"""Largest difference that the order of a sum explains."""
ENCODER = "get_multimodal_embeddings"


class EmbeddingRules(ContractRules):
    """An item's embeddings."""

    def test_encoder_batches_equal_single_items(self, subject: Subject) -> None:
        """An item's embeddings are the same alone and in any batch: with any others, at any place, in any split.

        Among them the largest and the smallest item, items of one size, one item twice, and the dummy.
        """
        for modality in subject.modalities:
            features = self._company(subject, modality)
            for group in group_joinable([feature.data for feature in features]):
                members = [features[i] for i in group]
                with self.expecting("items are embedded alone"):
                    alone = [subject.embed([feature])[0] for feature in members]
                for batch in _batches([feature.placeholder.num_embeds for feature in members]):
                    self._as_alone(subject, [members[i] for i in batch], [alone[i] for i in batch])

    def _company(self, subject: Subject, modality: str) -> list[MultiModalFeature]:
        """Return items of many sizes, some of one size, one item twice, the smallest and largest of all, the dummy.

        The dummy fills the encoder: beside it all others are padded, where items are.
        """
        items = [subject.item(modality, seed) for seed in (*range(6), 0)]
        items += [subject.alike(modality, seed) for seed in range(3)]
        with self.expecting("items are processed"):
            features = [subject.features(modality, item)[0] for item in items]
        extreme = [
            feature
            for item in extreme_items(subject, modality)
            for feature in self.taken(subject, modality, item, describe(item))
        ]
        extreme.sort(key=lambda feature: feature.placeholder.num_embeds)
        dummies = [feature for feature in subject.processor.profile.features if feature.modality == modality]
        return [*features, *extreme[:1], *extreme[-1:], *dummies]

    def _as_alone(self, subject: Subject, batch: Sequence[MultiModalFeature], alone: Sequence[Any]) -> None:
        """Require of a batch the embeddings that its items have alone."""
        __tracebackhide__ = True
        import torch

        modality, counts = batch[0].modality, [feature.placeholder.num_embeds for feature in batch]
        with self.expecting(f"{modality}s of {counts} embeddings are embedded together", hook=ENCODER):
            together = subject.embed(batch)
        self.require(
            len(together) == len(batch),
            ENCODER,
            expected=f"{len(batch)} entries",
            got=len(together),
            fix="give one tensor per item: [items, tokens, hidden], or a list",
        )
        for number, (one, other) in enumerate(zip(alone, together, strict=True)):
            self.require(
                one.shape == other.shape and torch.allclose(one, other, atol=TOLERANCE),
                ENCODER,
                expected=f"the same embeddings for {modality} {number} of a batch of {counts} embeddings as alone",
                got=f"{tuple(other.shape)}, different from {tuple(one.shape)} alone",
                fix="keep items apart: mask paddings, split embeddings by each item's own count, keep their order",
            )

    def test_merging_counts_rows(self, subject: Subject) -> None:
        """Merging takes exactly one embedding per placeholder token; any other number is refused."""
        import torch

        width, columns = subject.embedding_width, subject.columns
        generator, device = torch.Generator().manual_seed(0), subject.context.device
        mask = torch.tensor([False, True, True, True, False, True, False], device=device)
        text = torch.randn(len(mask), columns, generator=generator).to(device)
        embeddings = torch.randn(int(mask.sum()), width, generator=generator).to(device)

        def merge(given: Any) -> Any:
            merged = subject.hooks.merge_multimodal_embeddings(
                inputs_embeds=text.clone(), multimodal_embeddings=given, is_multimodal=mask
            )
            return merged[0] if isinstance(merged, tuple) else merged

        with self.expecting("as many embeddings as the mask has ones are merged"):
            merged = merge(embeddings.clone())
        self.require(
            torch.equal(merged[~mask], text[~mask]),
            "merge_multimodal_embeddings",
            expected="text embeddings untouched",
            got="changed",
            fix="write to the masked positions only",
        )
        for i, position in enumerate(mask.nonzero().flatten().tolist()):
            changed = embeddings.clone()
            changed[i] += 1
            differs = (merge(changed) != merged).any(-1).nonzero().flatten().tolist()
            self.require(
                differs == [position],
                "merge_multimodal_embeddings",
                expected=f"embedding {i} at position {position}",
                got=differs,
                fix="write embeddings in the order of the masked positions",
            )
        for wrong in (embeddings[:-1], embeddings[:1], embeddings[:0], torch.cat([embeddings, embeddings[:1]])):
            with self.refusing(
                "merge_multimodal_embeddings",
                f"{len(wrong)} embeddings for {len(embeddings)} positions",
                CorellmError,
                fix="check the number of embeddings before writing (corellm.multimodal.write_rows does)",
            ):
                merge(wrong)

    def test_chunks_give_the_same_embeddings(self, subject: Subject) -> None:
        """In whatever chunks a prompt is processed, merging gives the same embeddings as for the whole."""
        import torch

        parts: list[Any] = ["What is"]
        for modality in subject.modalities:
            parts += [
                part
                for i in range(subject.several(modality, 2))
                for part in ((modality, subject.item(modality, i)), " or ")
            ]
        with self.expecting("a prompt with items is processed"):
            processed = subject.process(*subject.prompt(parts))
        length = len(processed.token_ids)
        with self.expecting("items are embedded"):
            embeddings = [subject.embed([feature])[0] for feature in processed.features]
        whole = self._merged(subject, processed, embeddings, 0, length)

        @FEW
        @given(cuts=st.lists(st.integers(1, length), max_size=6))
        def pieces_are_the_whole(cuts: list[int]) -> None:
            bounds = sorted({0, length, *cuts})
            pieces = [self._merged(subject, processed, embeddings, start, end) for start, end in pairwise(bounds)]
            self.require(
                torch.equal(whole, torch.cat(pieces)),
                "merge_multimodal_embeddings",
                expected="the same embeddings",
                got=f"others when cut at {bounds[1:-1]}",
                fix="merge each chunk by its own mask and embeddings alone",
            )

        pieces_are_the_whole()

    def _merged(self, subject: Subject, processed: Any, embeddings: list[Any], start: int, end: int) -> Any:
        """Return the embeddings of a part of a prompt, as the engine makes them."""
        import torch

        mask = subject.embed_mask(processed)
        before = [0, *accumulate(mask.int().tolist())]
        chunk = mask[start:end]
        ids = subject.ids(processed.token_ids)[start:end].masked_fill(chunk, 0)
        with torch.inference_mode():
            text = subject.hooks.get_input_embeddings(model=subject.model, input_ids=ids)
            if not chunk.any():
                return text
            with self.expecting("a chunk is merged"):
                merged = subject.hooks.merge_multimodal_embeddings(
                    inputs_embeds=text,
                    multimodal_embeddings=torch.cat(embeddings)[before[start] : before[end]],
                    is_multimodal=chunk,
                )
        return merged[0] if isinstance(merged, tuple) else merged

    # --- precomputed embeddings -------------------------------------------------------------------------------------

    def test_precomputed_embeddings(self, subject: Subject) -> None:
        """Embeddings of a wrong rank, width or dtype are refused; right ones stand in for the item.

        Where `refuse_embeddings` gives a reason, all are refused with it.
        """
        import torch

        for modality in subject.modalities:
            item = subject.item(modality, 0)
            text, _ = subject.prompt([(modality, item), "What?"])
            with self.expecting("an item is embedded"):
                (feature,) = subject.process(text, {modality: item}).features
                embeddings = subject.embed([feature])[0].clone()
            reason = subject.hooks.refuse_embeddings(modality=modality)
            if reason is not None:
                self.require(
                    isinstance(reason, str) and bool(reason),
                    "refuse_embeddings",
                    expected="the reason, or None where embeddings are taken",
                    got=repr(reason),
                    fix="return a line of text",
                )
                with self.refusing(
                    "refuse_embeddings",
                    "an embedding",
                    EmbeddingInputError,
                    words=reason,
                    fix="give the reason in a line",
                ):
                    subject.process(text, {f"{modality}_embeds": [embeddings[:, : subject.hidden_size]]})
                continue
            wrong = {
                "of rank 1": embeddings[0],
                "too narrow": embeddings[:, :-1],
                "too wide": torch.cat([embeddings, embeddings[:, :1]], 1),
                "of integers": embeddings.int(),
                "not finite": torch.full_like(embeddings, float("nan")),
                "of length 0": embeddings[:0],
            }
            for what, given_embeddings in wrong.items():
                with self.refusing(
                    "get_data_parser",
                    f"embeddings {what}",
                    EmbeddingInputError,
                    fix="leave embeddings to the core's parser",
                ):
                    subject.process(text, {f"{modality}_embeds": [given_embeddings]})
            self._as_many_as_given(subject, modality, embeddings)
            params = SamplingParams(temperature=0, max_tokens=6, min_tokens=6)
            with self.expecting("embeddings in place of the item"):
                outputs = subject.llm.generate(
                    [
                        {"prompt": text, "multi_modal_data": media}
                        for media in ({modality: item}, {f"{modality}_embeds": [embeddings]})
                    ],
                    params,
                    use_tqdm=False,
                )
            tokens = [list(output.outputs[0].token_ids) for output in outputs]
            self.require(
                tokens[0] == tokens[1],
                "get_prompt_updates",
                expected=f"the item's own output, {tokens[0]}",
                got=tokens[1],
                fix="make room for mm_items[modality].num_embeddings(i) embeddings, where it is not None",
            )

    def test_embeddings_are_refused_for_a_reason(self, subject: Subject) -> None:
        """Precomputed embeddings are refused only where an item's placeholder is more than a token for each of them.

        Such as separators between its rows, a text that depends on the item, or positions that do not count up:
        embeddings alone do not say where those are.
        """
        for modality in subject.modalities:
            reason = subject.hooks.refuse_embeddings(modality=modality)
            if reason is None:
                continue
            with self.expecting("items are processed"):
                prompts = [subject.prompt(["What?", (modality, subject.item(modality, seed))]) for seed in range(6)]
                items = [subject.process(*prompt) for prompt in prompts]
            around = {_around_embeddings(subject, processed) for processed in items}
            plain = len(around) == 1 and None not in around
            self.require(
                not plain or any(_has_own_positions(subject, processed) for processed in items),
                "refuse_embeddings or get_rope_positions",
                expected=f"embeddings of {modality}s taken: a placeholder is a token for each, in a row, at positions "
                "that count up",
                got=f"refused: {reason}",
                fix="leave out refuse_embeddings, and make room for mm_items[modality].num_embeddings(i) embeddings; "
                "or give an item's tokens their own positions in get_rope_positions, where the model has such; or name "
                "this rule in exceptions, and say what an embedding lacks",
            )

    def _as_many_as_given(self, subject: Subject, modality: str, embeddings: Any) -> None:
        """Require a token for each embedding of several items that are shorter than the model's own."""
        count = len(embeddings)
        given = [embeddings[: count - i] for i in range(min(subject.several(modality), count))][::-1]
        given[0] = given[0][:-1] if len(given[0]) > 1 else given[0]
        text = "What?" + subject.placeholder(modality) * len(given)
        with self.expecting("embeddings of any length", hook="get_prompt_updates"):
            features = subject.process(text, {f"{modality}_embeds": given}).features
        room, want = [feature.placeholder.num_embeds for feature in features], [len(part) for part in given]
        self.require(
            room == want,
            "get_prompt_updates",
            expected=f"room for {want} embeddings",
            got=room,
            fix="make room for mm_items[modality].num_embeddings(i) embeddings of item i, where it is not None",
        )


def _batches(sizes: Sequence[int]) -> list[list[int]]:
    """Return batches of items, by index: all in several orders, cut in two, pairs, and one item twice.

    Args:
        sizes: the number of embeddings of each item.
    """
    everyone = list(range(len(sizes)))
    by_size = sorted(everyone, key=lambda i: sizes[i])
    small, large = by_size[0], by_size[-1]
    orders = [everyone, everyone[::-1], by_size, by_size[::-1]]
    halves = [half for cut in everyone[1::2] for half in (everyone[:cut], everyone[cut:])]
    pairs = [list(pair) for pair in pairwise(everyone)]
    return [*orders, [small, large], [large, small], [large, small, large], [small, small], *pairs, *halves]


def _around_embeddings(subject: Subject, processed: ProcessedPrompt) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return a placeholder's tokens before and after those that take embeddings; None where others are between."""
    (feature,) = processed.features
    place, tokens = feature.placeholder, processed.token_ids
    taking = subject.embed_mask(processed).nonzero().flatten().tolist()
    first, last = taking[0], taking[-1]
    if last - first >= len(taking):
        return None
    return tuple(tokens[place.offset : first]), tuple(tokens[last + 1 : place.end])


def _has_own_positions(subject: Subject, processed: ProcessedPrompt) -> bool:
    """Whether the adapter gives a prompt other positions than 0, 1, 2, ..."""
    import numpy as np

    from corellm.worker.sequence_state import rope_positions

    found = rope_positions(subject.hooks, subject.model, processed.token_ids, processed.features)
    if found is None:
        return False
    positions, offset = found
    return offset != 0 or bool((positions != np.arange(len(processed.token_ids))).any())

"""Rules about embeddings: encoder batches, merging into prompts in any chunks, and precomputed embeddings."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from corellm.errors import CorellmError, EmbeddingInputError
from corellm.multimodal.fields import group_joinable
from corellm.sampling_params import SamplingParams
from corellm.testing.contract.base import FEW, ContractRules
from corellm.testing.subject import Subject

TOLERANCE = 1e-5
"""Largest difference that the order of a sum explains."""


class EmbeddingRules(ContractRules):
    """An item's embeddings."""

    def test_encoder_batches_equal_single_items(self, subject: Subject) -> None:
        """An item's embeddings are the same alone and in a batch with others, at any place in it."""
        import torch

        for modality in subject.modalities:
            with self.expecting("items are processed"):
                features = [subject.features(modality, subject.item(modality, seed))[0] for seed in range(5)]
                features += subject.features(modality, subject.item(modality, 0))
            for group in group_joinable([feature.data for feature in features]):
                members = [features[i] for i in group]
                with self.expecting("items are embedded together and alone"):
                    together = subject.embed(members[::-1])[::-1]
                    alone = [subject.embed([feature])[0] for feature in members]
                self.require(
                    len(together) == len(members),
                    "get_multimodal_embeddings",
                    expected=f"{len(members)} entries",
                    got=len(together),
                    fix="give one tensor per item: [items, tokens, hidden], or a list",
                )
                for one, other, feature in zip(alone, together, members, strict=True):
                    self.require(
                        one.shape == other.shape and torch.allclose(one, other, atol=TOLERANCE),
                        "get_multimodal_embeddings",
                        expected=f"the same embeddings for {modality} alone and among {len(members)}",
                        got=f"{tuple(other.shape)}, different from alone",
                        fix="keep items apart: mask paddings, split embeddings by each item's "
                        f"own count ({feature.placeholder.num_embeds} here), keep their order",
                    )

    def test_merging_counts_rows(self, subject: Subject) -> None:
        """Merging takes exactly one embedding per placeholder token; any other number is refused."""
        import torch

        width, columns = subject.embedding_width, subject.hidden_size
        generator = torch.Generator().manual_seed(0)
        mask = torch.tensor([False, True, True, True, False, True, False])
        text = torch.randn(len(mask), columns, generator=generator)
        embeddings = torch.randn(int(mask.sum()), width, generator=generator)

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

    @FEW
    @given(data=st.data())
    def test_chunks_give_the_same_embeddings(self, subject: Subject, data: st.DataObject) -> None:
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
        cuts = data.draw(st.lists(st.integers(1, length), max_size=6)) if length > 1 else []
        bounds = sorted({0, length, *cuts})
        with self.expecting("items are embedded"):
            embeddings = [subject.embed([feature])[0] for feature in processed.features]
        whole = self._merged(subject, processed, embeddings, 0, length)
        pieces = torch.cat(
            [self._merged(subject, processed, embeddings, start, end) for start, end in pairwise(bounds)]
        )
        self.require(
            torch.equal(whole, pieces),
            "merge_multimodal_embeddings",
            expected="the same embeddings",
            got=f"others when cut at {bounds[1:-1]}",
            fix="merge each chunk by its own mask and embeddings alone",
        )

    def _merged(self, subject: Subject, processed: Any, embeddings: list[Any], start: int, end: int) -> Any:
        """Return the embeddings of a part of a prompt, as the engine makes them."""
        import torch

        mask = subject.embed_mask(processed)
        before = [0, *accumulate(mask.int().tolist())]
        chunk = mask[start:end]
        ids = torch.tensor(processed.token_ids)[start:end].masked_fill(chunk, 0)
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

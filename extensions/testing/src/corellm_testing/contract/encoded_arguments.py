"""Rules about arguments and the encoder: it takes what a request's make of an item, and items of several requests."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from corellm.multimodal.inputs import MultiModalFeature
from corellm_testing.contract.arguments import Argument, ArgumentRules
from corellm_testing.contract.embeddings import TOLERANCE
from corellm_testing.contract.processing import reference_output
from corellm_testing.contract.worst_case import ENLARGING
from corellm_testing.reference import token_ids_of
from corellm_testing.subject import Part, Subject, describe, large_item

_SEEDS = (3, 7)
"""Seeds of an item that is higher than wide, and of one that is much wider than high."""


class EncodedArgumentRules(ArgumentRules):
    """From a request's arguments to the encoder."""

    def test_every_value_is_embedded_or_refused(
        self, subject: Subject, processor_arguments: Mapping[str, Sequence[Argument]]
    ) -> None:
        """Whatever a request's arguments, an item becomes as many embeddings as its placeholder takes, or is refused.

        Tried with every value of the other rules' arguments, also of those in `without_effect`.
        """
        for modality in subject.modalities:
            items = [*(subject.item(modality, seed) for seed in _SEEDS), large_item(subject, modality)]
            own = [{argument.name: value} for argument in processor_arguments[modality] for value in argument.values]
            wrong, hook = dict[str, str](), "call_hf_processor or get_multimodal_embeddings"
            for kwargs, item in product([*own, *ENLARGING], items):
                if str(kwargs) not in wrong:
                    what = f"{describe(item)} with {dict(kwargs)}"
                    features = self.taken(subject, modality, item, what, copy.deepcopy(kwargs))
                    if features and (found := _misfit(subject, features)):
                        wrong[str(kwargs)] = f"{what}: {found}"
                        if _has_other_tokens(subject, ["What?", (modality, item)], kwargs):
                            hook = "get_prompt_updates or get_mm_kwargs_names"
            if not wrong:
                continue
            for item in items:  # without arguments: then they are not to blame
                self.fits_placeholder(subject, self.taken(subject, modality, item, describe(item)), describe(item))
            self.fail(
                hook,
                expected=f"{modality}: embedded as the placeholder takes it, or refused, with {', '.join(wrong)}",
                got="\n".join(wrong.values()),
                fix="make the placeholder as long as the Hugging Face processor makes it, and let "
                "get_multimodal_embeddings handle what it makes; or refuse the argument in call_hf_processor with a "
                "ProcessorKwargsError: what the model's configuration fixes, no request can change",
            )

    def test_arguments_may_differ_in_a_batch(
        self, subject: Subject, processor_arguments: Mapping[str, Sequence[Argument]]
    ) -> None:
        """Items of requests with different arguments get the same embeddings when they come together as alone.

        The engine puts them into one encoder batch, and each into its own if that fails.
        """
        import torch

        for modality in subject.modalities:
            item, features = subject.item(modality, _SEEDS[0]), list[MultiModalFeature]()
            for argument in processor_arguments[modality]:
                for value in argument.values[:2]:
                    kwargs = {argument.name: copy.deepcopy(value)}
                    features += self.taken(subject, modality, item, f"{describe(item)} with {kwargs}", kwargs)
            what = f"{len(features)} {modality}s of requests with different arguments"
            with self.expecting(f"{what} are embedded", hook="get_multimodal_embeddings"):
                alone = [output for one in features for output in subject.encode([one])]
                together = subject.encode(features)
            same = [torch.allclose(one, other, atol=TOLERANCE) for one, other in zip(alone, together, strict=True)]
            self.require(
                all(same),
                "get_multimodal_embeddings",
                expected=f"{what} embedded as each alone",
                got=f"{same.count(False)} of them otherwise",
                fix="take what differs from item to item of each item's own tensors",
            )


def _has_other_tokens(subject: Subject, parts: Sequence[Part], kwargs: Mapping[str, Any]) -> bool:
    """Whether the reference takes a prompt with arguments, and makes other tokens of it than the adapter."""
    want = reference_output(subject, parts, kwargs)
    if want is None:
        return False
    return subject.process(*subject.prompt(parts), copy.deepcopy(kwargs)).token_ids != token_ids_of(want)


def _misfit(subject: Subject, features: Sequence[MultiModalFeature]) -> str:
    """Return why the encoder's embeddings of items do not fit their placeholders; an empty text where they do."""
    want = [(feature.placeholder.num_embeds, subject.embedding_width) for feature in features]
    try:
        got = [tuple(embeddings.shape) for embeddings in subject.embed(features)]
    except Exception as error:  # whatever the model raises
        return f"the encoder raised {type(error).__name__}: {' '.join(str(error).split()):.200}"
    return "" if got == want else f"embeddings of shapes {got} for placeholders of {want}"

"""The rule about checkpoints: an adapter reads their settings, and assumes none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
import pytest

from corellm.llm import LLM
from corellm.outputs import RequestOutput
from corellm.testing.contract.greedy import Case, GreedyRules
from corellm.testing.reference import Continuation
from corellm.testing.subject import Part, Subject

TOKENS = 6
"""Of each output."""


class VariantRules(GreedyRules):
    """Other checkpoints than the one of all other rules."""

    def test_every_variant_equals_the_reference(self, tmp_path: Path) -> None:
        """Checkpoints of other settings, each of `VARIANTS` in `tiny.py`, give the reference's tokens, too."""
        variants = self.variants()
        if not variants:
            pytest.skip("tiny.py has no VARIANTS: settings that checkpoints of this family differ in")
        for number, (name, settings) in enumerate(variants.items()):
            path = self.make_checkpoint(tmp_path / str(number), **settings)
            fix = "read it from the checkpoint's configuration, tokenizer or processor; assume nothing"
            with self.expecting(f"a checkpoint with {name} loads", fix=fix):
                variant = Subject(path, self.reference(path))
            with closing(variant):
                with self.expecting(f"requests to a checkpoint with {name} are served", fix=fix):
                    cases = _cases(variant, seed=200)
                    outputs = _served(variant.llm, cases)
                for case, output, want in zip(cases, outputs, _expected(variant, cases), strict=True):
                    what = f"{case.text!r} of a checkpoint with {name}"
                    self.equal(output, want, what, with_items=bool(case.media))


def _cases(subject: Subject, seed: int) -> list[Case]:
    """Return a few requests: text alone, one item of each modality, several items; new ones for each seed."""
    prompts: list[list[Part]] = [["How many objects are there?"]]
    for modality in subject.modalities:
        items = [(modality, subject.item(modality, seed + i)) for i in range(subject.several(modality, 2) + 1)]
        prompts.append([items[0], "What shape is in the picture?"])
        prompts.append(["Look. ", *(part for item in items[1:] for part in (item, " and ")), "?"])
    return [Case(*subject.prompt(parts), TOKENS) for parts in prompts]


def _expected(subject: Subject, cases: Sequence[Case]) -> list[Continuation]:
    return [subject.reference.generate(case.text, case.media, {}, case.max_tokens) for case in cases]


def _served(llm: LLM, cases: Sequence[Case]) -> list[RequestOutput]:
    return llm.generate([case.prompt for case in cases], [case.params for case in cases], use_tqdm=False)

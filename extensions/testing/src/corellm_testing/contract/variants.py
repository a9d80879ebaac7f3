"""Rules about checkpoints: settings are read from each, and models of several in one process are kept apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from corellm.errors import CheckpointError, CorellmError
from corellm.llm import LLM
from corellm.outputs import RequestOutput
from corellm_testing.chats import items_of, messages_of
from corellm_testing.contract.greedy import Case, GreedyRules
from corellm_testing.contract.same_outputs import TOLERANCE, tokens_and_logprobs
from corellm_testing.quick import slow
from corellm_testing.reference import Continuation
from corellm_testing.subject import Part, Subject

TOKENS = 6
"""Number of tokens of each output."""


class VariantRules(GreedyRules):
    """Other checkpoints than the one of all other rules."""

    @slow()
    def test_every_variant_equals_the_reference(self, subject: Subject, tmp_path: Path) -> None:
        """Checkpoints of other settings, each of `VARIANTS` in `tiny.py`, give the reference's tokens, too.

        Conversations without a template have their own placeholders, not those of the tiny checkpoint, asked before.
        """
        variants = self.variants()
        if not variants:
            pytest.skip("tiny.py has no VARIANTS: settings that checkpoints of this family differ in")
        fix = "read it from the checkpoint's configuration, tokenizer or processor; assume nothing"
        self._takes_a_chat(subject, "the tiny checkpoint", fix)
        for number, (name, settings) in enumerate(variants.items()):
            path = self.make_checkpoint(tmp_path / str(number), **settings)
            with self.expecting(f"a checkpoint with {name} loads", fix=fix):
                variant = Subject(path, self.reference(path))
            with closing(variant):
                self._takes_a_chat(variant, f"a checkpoint with {name}", fix)
                with self.expecting(f"requests to a checkpoint with {name} are served", fix=fix):
                    cases = _cases(variant, seed=200)
                    outputs = _served(variant.llm, cases)
                for case, output, want in zip(cases, outputs, _expected(variant, cases), strict=True):
                    what = f"{case.text!r} of a checkpoint with {name}"
                    self.equal(variant, output, want, what, with_items=bool(case.media))

    def _takes_a_chat(self, subject: Subject, what: str, fix: str) -> None:
        """Require a conversation without a template to be a prompt with its items."""
        __tracebackhide__ = True
        messages = messages_of([("user", [*items_of(subject), "Ask one"])])
        hook = "get_placeholder_str or make_context"
        try:
            subject.chatting(template=False).process_chat(messages)
        except CorellmError as error:
            self.fail(
                hook,
                expected=f"a conversation of items and a text is taken by {what}",
                got=f"{type(error).__name__}: {error}",
                fix=fix,
            )

    @slow()
    def test_checkpoints_that_cannot_be_served_are_refused(self, tmp_path: Path) -> None:
        """Each checkpoint of `REFUSED` in `tiny.py` is refused at load, with a `CheckpointError` that says why."""
        for number, (name, settings) in enumerate(self.refused_checkpoints().items()):
            path = self.make_checkpoint(tmp_path / str(number), **settings)
            fix = "raise corellm.errors.CheckpointError with the path, what is wrong, and the way out"
            with self.refusing("load_model", f"a checkpoint with {name}", CheckpointError, fix=fix):
                LLM(str(path), dtype="float32").close()

    @slow()
    def test_models_are_kept_apart(self, subject: Subject, tmp_path: Path) -> None:
        """Two models in one process, of other weights and settings, asked in turns, each give their own outputs."""
        settings: Mapping[str, Any] = next(iter(self.variants().values()), {})
        path = self.make_checkpoint(tmp_path / "other", seed=1, **settings)
        fix = "keep a model's state in the adapter's instance, not in its class, module or caches"
        first = _cases(subject, 202)  # written before there is another model, which must not change what is asked
        with self.expecting("a second model beside the first", fix=fix):
            other = Subject(path, self.reference(path))
        with closing(other):
            with self.expecting(
                "prompts for the second model are transformers' own", hook="get_placeholder_str", fix=fix
            ):
                requests = {"the first": (subject, first), "the second": (other, _cases(other, 202))}
                expected = {name: _expected(*asked) for name, asked in requests.items()}
            for turn in range(len(expected["the first"])):
                for name, (model, cases) in requests.items():
                    case, want = cases[turn], expected[name][turn]
                    with self.expecting(f"{name} model serves {case.text!r} beside the other", fix=fix):
                        (output,) = _served(model.llm, [case])
                    tokens = output.prompt_token_ids == want.prompt_token_ids
                    self.require(
                        tokens and _same(output, want),
                        "get_multimodal_embeddings" if tokens else "get_prompt_updates",
                        expected=f"{name} model gives for {case.text!r}, as alone: {want.token_ids}",
                        got=f"{output.outputs[0].token_ids}{'' if tokens else ' for another prompt'} beside the other",
                        fix=fix,
                    )


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


def _same(output: RequestOutput, want: Continuation) -> bool:
    """Whether an output has the expected tokens and log-probabilities."""
    tokens, logprobs = tokens_and_logprobs(output)
    worst = max(abs(a - b) for a, b in zip(logprobs, want.logprobs, strict=True))
    return tokens == want.token_ids and worst <= TOLERANCE

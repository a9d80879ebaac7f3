"""The rule about outputs of text alone: before rules in which items take part, so that it blames no hook of theirs."""

from __future__ import annotations

from corellm.sampling_params import SamplingParams
from corellm_testing.contract.same_outputs import SameOutputRules
from corellm_testing.subject import Subject

TEXTS = ("What shape is in the picture?", "How many objects are there? yes\nor no?")


class TextOutputRules(SameOutputRules):
    """Weights, decoder, embeddings and logits, without an item."""

    def test_text_alone_is_continued_as_by_the_reference(self, subject: Subject) -> None:
        """Greedy tokens of a prompt without items, and their log-probabilities, are the reference's."""
        params = SamplingParams(temperature=0, max_tokens=4, min_tokens=4, logprobs=0)
        for text in TEXTS:
            with self.expecting(f"the reference continues {text!r}", hook="the contract class"):
                want = subject.reference.generate(text, {}, {}, 4)
            with self.expecting(f"{text!r} is continued"):
                (output,) = subject.llm.generate(text, params, use_tqdm=False)
            self.equal(subject, output, want, repr(text), with_items=False)

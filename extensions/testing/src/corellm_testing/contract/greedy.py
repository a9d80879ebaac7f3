"""The rule about outputs: greedy tokens are the reference's, batched among others, in chunks of any size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from corellm.errors import PromptError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.frontend.stated_parts import spans_of
from corellm.llm import LLM
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm_testing.contract.same_outputs import SameOutputRules
from corellm_testing.quick import is_quick, slow
from corellm_testing.reference import Continuation
from corellm_testing.rules import ContractBroken, guilty_hook
from corellm_testing.subject import Part, Subject
from corellm_testing.together import generate_together

QUESTIONS = (
    "What shape is in the picture?",
    "How many objects are there?",
    "Describe the image. The quick brown fox jumps over the lazy dog. " * 2,
    "yes\nor no?",
    "left, right, above or below?",
    "0123456789 " * 5,
)
_SHORT = 12
"""Tokens of the shortest output of a short prompt."""
_LONGER = 3
"""How many more tokens the output of the next one has."""
SCARCE_BLOCK_SIZES = (8, 32)


def scarce_blocks(longest: int, block_size: int) -> int:
    """Return a number of blocks in which a request of the longest length fits, and the short ones outgrow it."""
    return -(-longest // block_size) + 2


@dataclass(frozen=True)
class Case:
    """One request."""

    text: str
    media: dict[str, list[Any]]
    max_tokens: int

    @property
    def prompt(self) -> dict[str, Any]:
        """The prompt as the engine takes it."""
        return {"prompt": self.text, "multi_modal_data": self.media}

    @property
    def params(self) -> SamplingParams:
        """Greedy, of a fixed length, with log-probabilities."""
        return SamplingParams(temperature=0, max_tokens=self.max_tokens, min_tokens=self.max_tokens, logprobs=0)


@dataclass(frozen=True)
class Examination:
    """Requests and the reference's outputs."""

    cases: Sequence[Case]
    expected: Sequence[Continuation]
    most_states: int = 0
    """Most states of a request's items, where the decoder attends to them."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its output."""
        return max(len(e.prompt_token_ids) + c.max_tokens for c, e in zip(self.cases, self.expected, strict=True))


class GreedyRules(SameOutputRules):
    """The whole engine, from request to output. A checkpoint of its own may be tested by a subclass of this alone."""

    shares_prefixes: bool
    """Whether the last engine shared prefixes that end behind any block: a decoder that keeps a state shares fewer."""
    fills_memory: ClassVar[bool] = False
    """Whether outputs of short prompts are so long that they do not fit together where the longest request fits."""

    @pytest.fixture(scope="class")
    @classmethod
    def examination(cls, subject: Subject, request: pytest.FixtureRequest) -> Examination:
        """Requests and the reference's outputs, once for all rules."""
        fill_memory = cls.fills_memory and not is_quick(request.config)  # which leaves out the rules that need it
        what = "requests are written with the adapter's placeholders, and the reference takes them"
        try:
            cases = list(_cases(subject, fill_memory))
            if _depends_on_whole_prompts(subject, cases[-1]):  # only equal ones share anything
                cases += cases[-2:]
            generate = subject.reference.generate
            expected = [generate(case.text, case.media, {}, case.max_tokens) for case in cases]
            return Examination(cases, expected, max(_num_states(subject, case) for case in cases))
        except Exception as error:  # no rule runs in a fixture
            got = f"{type(error).__name__}: {error}"
            raise ContractBroken(
                guilty_hook(error), "examination", expected=what, got=got, fix="see the error"
            ) from error

    def test_the_reference_tells_requests_apart(self, examination: Examination) -> None:
        """Weights are random enough: equal outputs for all requests would prove nothing."""
        beginnings = {tuple(e.token_ids[:5]) for e in examination.expected}
        varied = sum(len(set(e.token_ids)) > len(e.token_ids) // 3 for e in examination.expected)
        count = len(examination.cases)
        of_text = [
            tuple(e.token_ids[:5]) for c, e in zip(examination.cases, examination.expected, strict=True) if not c.media
        ]
        if varied < 0.75 * count:
            more = "untie the output layer (tie_word_embeddings=False), take no cap and no scale of logits, add a layer"
        elif len(set(of_text)) > 0.8 * len(of_text):
            more = "spread what makes embeddings of items (tower, projector) until they are as large as those of text"
        else:
            more = "spread the decoder's attention wider, and the embedding table; its norms stay at one"
        self.require(
            len(beginnings) > 0.8 * count and varied >= 0.75 * count,
            "make_tiny_checkpoint",
            expected=f"{count} requests with different, varied outputs",
            got=f"{len(beginnings)} beginnings, {varied} varied",
            fix="spread the weights wider: corellm.tiny_checkpoints.randomize_weights, after which nothing "
            f"initialises them again; where that is done, {more}",
        )

    @slow(but="16-prefix-caching")
    @pytest.mark.parametrize(
        ("chunk", "prefix_caching"), [(16, True), (8192, False)], ids=["16-prefix-caching", "8192-no-prefix-caching"]
    )
    def test_greedy_equals_the_reference(
        self, subject: Subject, examination: Examination, chunk: int, prefix_caching: bool
    ) -> None:
        """Batched among others, in small chunks with prefix caching and in large ones without: the reference's tokens.

        A decoder that keeps a state shares prefixes that are longer than some of these.
        """
        outputs = self.check_outputs(
            subject, examination, max_num_batched_tokens=chunk, enable_prefix_caching=prefix_caching
        )
        reused = sum(output.num_cached_tokens for output in outputs)
        self.require(
            reused > 0 if self.shares_prefixes else prefix_caching or not reused,
            "call_hf_processor",
            expected="shared beginnings, or equal prompts where each is read whole, are found in the prefix cache",
            got=f"{reused} tokens reused",
            fix="let equal items and prompts become equal tokens and identifiers",
        )

    # --- comparing --------------------------------------------------------------------------------------------------

    def check_outputs(self, subject: Subject, examination: Examination, **engine_args: Any) -> list[RequestOutput]:
        """Return the outputs of all requests, served together and equal to the reference's; no block stays in use."""
        __tracebackhide__ = True
        cases = examination.cases
        with (
            self.expecting("all requests are served"),
            LLM(str(subject.checkpoint), dtype="float32", **engine_args) as llm,
        ):
            outputs = generate_together(llm, [c.prompt for c in cases], [c.params for c in cases])
            blocks = llm.engine.scheduler.blocks
            blocks.check_integrity()
            self.shares_prefixes = blocks.shares_any_block
            assert blocks.num_free_blocks == blocks.capacity, "blocks are still taken at the end"
        for case, output, want in zip(cases, outputs, examination.expected, strict=True):
            self.equal(
                subject, output, want, f"{case.text[:60]!r} with {_counts(case.media)}", with_items=bool(case.media)
            )
        return outputs


def _depends_on_whole_prompts(subject: Subject, case: Case) -> bool:
    """Whether a prompt's first token sees the last one, in an encoder or in a span that is the prompt; or items do."""
    if subject.is_encoder_decoder or subject.processor.reads_prompts:
        return True
    processed = subject.process(case.text, case.media)
    return (0, len(processed.token_ids)) in spans_of(subject.hooks, processed.token_ids, processed.features)


def _takes_text_alone(subject: Subject) -> bool:
    """Whether a prompt needs no item: an encoder-decoder may have an encoder that reads items alone."""
    try:
        subject.process("What?")
    except PromptError:
        return not subject.is_encoder_decoder
    return True


def _cases(subject: Subject, fill_memory: bool) -> Iterator[Case]:
    """Yield requests: text alone where the model takes that, then longer ones, with items where it takes any.

    Outputs of short prompts come first: where they are long, they run in parallel until memory is used up.
    """
    longer = list(_item_cases(subject) if subject.modalities else _text_cases())
    short = list(_short_prompts(subject))
    output = _long_output(subject, short, longer) if fill_memory else _SHORT
    for i, prompt in enumerate(short):
        yield Case(*prompt, output + _LONGER * i)
    yield from longer


def _short_prompts(subject: Subject) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Yield a prompt for each question, without an item where the model takes that."""
    takes_text_alone = _takes_text_alone(subject)
    for i, question in enumerate(QUESTIONS):
        parts: list[Part] = [question]
        if not takes_text_alone:
            parts = [(subject.modalities[0], subject.item(subject.modalities[0], 5 * i)), question]
        yield subject.prompt(parts)


def _long_output(subject: Subject, short: Sequence[tuple[str, dict[str, list[Any]]]], longer: Sequence[Case]) -> int:
    """Return a number of tokens with which short prompts that run at once outgrow the longest request's memory."""
    longest = max(len(subject.process(case.text, case.media).token_ids) + case.max_tokens for case in longer)
    longest += max(_num_states(subject, case) for case in longer)
    processed = [subject.process(*prompt) for prompt in short]
    prompts = [_places(subject, prompt) for prompt in processed]
    for output in itertools.count(_SHORT):
        wholes = [len(p.token_ids) + output + _LONGER * i for i, p in enumerate(processed)]
        exact, ample = max(longest, *wholes), max(longest, max(wholes) + _LONGER * len(short))  # steps take few tokens
        if all(
            _outgrow(prompts, output, scarce_blocks(whole, size), size)
            for whole in (exact, ample)
            for size in SCARCE_BLOCK_SIZES
        ):
            break
    return output


def _places(subject: Subject, prompt: ProcessedPrompt) -> tuple[int, int]:
    """Return how many states a request keeps, which do not grow, and tokens, which do; of a decoder all are tokens."""
    if not subject.is_encoder_decoder:
        return 0, len(prompt.token_ids)
    begins = subject.hooks.get_decoder_prompt(token_ids=prompt.token_ids, mm_features=prompt.features)
    assert begins is not None, "an encoder-decoder begins with a token"
    states = len(prompt.token_ids) if begins.num_states is None else begins.num_states
    return states, len(begins.token_ids)


def _outgrow(prompts: Sequence[tuple[int, int]], output: int, num_blocks: int, block_size: int) -> bool:
    """Whether the prompts that are taken at once, one block left free, need more blocks before one of them ends."""

    def blocks(states: int, tokens: int) -> int:
        return -(-states // block_size) - (-tokens // block_size)

    taken = [*itertools.accumulate(blocks(*prompt) for prompt in prompts)]
    running = prompts[: sum(num < num_blocks for num in taken)]
    return sum(blocks(states, tokens + output - 1) for states, tokens in running) > num_blocks


def _num_states(subject: Subject, case: Case) -> int:
    """Return how many states the decoder attends to beside a prompt's tokens."""
    places = [feature.placeholder for feature in subject.process(case.text, case.media).features]
    return sum(place.num_embeds for place in places if place.num_states is not None)


def _text_cases() -> Iterator[Case]:
    """Yield requests with a shared prefix, each longer than the one before."""
    for i, question in enumerate(QUESTIONS):
        yield Case("Look with care, one two three four five six seven. " * (i + 1) + question, {}, 5 + 2 * i)


def _item_cases(subject: Subject) -> Iterator[Case]:
    """Yield requests with one item, with several of several modalities, with many, with a shared prefix.

    Where modalities are refused together, those with several items have them of one.
    """
    several = {modality: subject.several(modality) for modality in subject.modalities}
    beside = subject.takes_together(subject.modalities)
    for i, question in enumerate(QUESTIONS):
        modality = subject.modalities[i % len(subject.modalities)]
        one: list[Part] = [(modality, subject.item(modality, 11 * i)), question]
        kinds = [modality] if not beside else list(several) if i % 2 else list(several)[::-1]
        many: list[Part] = [
            part for m in kinds for k in range(several[m]) for part in (f"{m}", (m, subject.item(m, 50 + 7 * i + k)))
        ]
        shared: list[Part] = ["Look with care. ", (modality, subject.item(modality, 99)), question]
        yield Case(*subject.prompt(one), 5 + 2 * i)
        yield Case(*subject.prompt([*many, question[:30]]), 6 + i)
        yield Case(*subject.prompt(shared), 10)
    crowd = [(kinds[0], subject.item(kinds[0], k)) for k in range(subject.several(kinds[0], 8))]
    yield Case(*subject.prompt([QUESTIONS[2] * 2, *(part for one in crowd for part in (one, ", ")), "?"]), 6)


def _counts(media: dict[str, list[Any]]) -> str:
    return " and ".join(f"{len(items)} {modality} items" for modality, items in media.items()) or "no items"

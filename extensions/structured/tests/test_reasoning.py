"""Reasoning before a form: what may come, where the form begins, and the bound on its tokens.

The oracle is the library `regex`, which tells whether a text can become a match, and the tokenizers' own `decode`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
from transformers import AutoTokenizer

from corellm import LLM, ReasoningParams, SamplingParams, StructuredOutputsParams
from corellm.errors import InvalidParameterError
from corellm.sampling.constraint import Constraint, num_words
from corellm_structured.constraint import StructuredConstraints
from corellm_testing.together import generate_together

FORM = r"[0-9]{1,2}(,[0-9])?"
MARKERS = ("<think>", "</think>")


def pattern_of(start: str, end: str, is_begun: bool) -> str:
    """The pattern of whole outputs; markers that are special tokens stand for themselves, and may not be spelt."""
    thought = rf"(?:(?!</think>)[^\ue000\ue001])*{end}[ \n]{{0,2}}"
    if is_begun:
        return f"(?:{'' if start in MARKERS else start})?{thought}{FORM}"
    return f"({start}{thought})?{FORM}"


@pytest.fixture(scope="module", params=["text", "one token", "special"])
def tokenizer(request: pytest.FixtureRequest, tiny_llava: Path) -> Any:
    """With markers that are several tokens, one each, and special tokens."""
    found = AutoTokenizer.from_pretrained(tiny_llava)
    if request.param == "one token":
        found.add_tokens(["<think>", "</think>"])
    elif request.param == "special":
        found.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    return found


def filled(constraint: Constraint, vocab_size: int) -> set[int]:
    mask = np.zeros(num_words(vocab_size), dtype=np.int32)
    constraint.fill(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def made(tokenizer: Any, form: dict[str, Any], **reasoning: Any) -> Constraint:
    constraints = StructuredConstraints(tokenizer, len(tokenizer))
    definition = StructuredOutputsParams(**form, reasoning=ReasoningParams(**reasoning)).definition()
    return constraints(definition, frozenset({tokenizer.eos_token_id}))


def texts_of(tokenizer: Any) -> dict[int, str]:
    """The text of each token that is whole characters; of markers that are special tokens a character each."""
    before = tokenizer.encode("say:", add_special_tokens=False)
    prefix = tokenizer.decode(before)
    special = {*tokenizer.all_special_ids, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)}
    texts = {
        token: tokenizer.decode([*before, token], clean_up_tokenization_spaces=False)[len(prefix) :]
        for token in range(len(tokenizer))
        if token not in special
    }
    found = {token: text for token, text in texts.items() if text and "\ufffd" not in text}
    names = zip(map(tokenizer.convert_tokens_to_ids, MARKERS), "\ue000\ue001", strict=True)
    return found | {token: name for token, name in names if token in special - {tokenizer.unk_token_id}}


@pytest.mark.parametrize("is_begun", [True, False])
def test_the_form_begins_behind_the_reasoning(tokenizer: Any, is_begun: bool) -> None:
    """On the way of random outputs, which end their reasoning by a word of ours. The end comes after the form alone."""
    texts, draws, size = texts_of(tokenizer), random.Random(0), len(tokenizer)
    is_special = "\ue001" in texts.values()
    start, end = "\ue000\ue001" if is_special else MARKERS
    pattern = pattern_of(start, end, is_begun)
    constraint, output, ended = made(tokenizer, {"regex": FORM}, is_begun=is_begun), "", 0
    words = [*([] if is_begun else ["<think>"]), "a word", " <b> 12 </thin", "</think>", "7"]
    for token in [token for word in words for token in tokenizer.encode(word, add_special_tokens=False)]:
        got = filled(constraint, size)
        assert filled(constraint, size) == got
        assert (tokenizer.eos_token_id in got) == (regex.fullmatch(pattern, output) is not None)
        wanted = {t for t, text in texts.items() if regex.fullmatch(pattern, output + text, partial=True)}
        assert {token for token in got if token in texts} == wanted, output
        assert token in got
        constraint.accept(token)
        output += texts.get(token, "")
        ended += "</think>" in output or "\ue001" in output
        count = draws.randint(0, 3)
        taken = 0
        for _ in range(count):  # drafts that are taken back leave no trace
            if not (choices := sorted(filled(constraint, size) & texts.keys())):
                break
            constraint.accept(draws.choice(choices))
            taken += 1
        constraint.rollback(taken)
    assert ended > 1
    assert regex.fullmatch(pattern, output)


def test_a_form_may_begin_at_once_and_is_no_reasoning(tokenizer: Any) -> None:
    """A marker within the form opens nothing: no bound ends it."""
    form = {"regex": r"x<think>[a-z ]+"}
    constraint, size = made(tokenizer, form, max_tokens=1), len(tokenizer)
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "x<think>abc"]
    for token in letters:
        assert token in filled(constraint, size)
        constraint.accept(token)
    assert len(filled(constraint, size)) > 10


@pytest.mark.parametrize("form", [{"regex": "[0-9]{2}"}, {}])
@pytest.mark.parametrize("is_begun", [True, False])
def test_a_bound_on_reasoning(tokenizer: Any, form: dict[str, Any], is_begun: bool) -> None:
    """After five tokens the marker's come and no others, also when they are taken back; then what comes anyway."""
    size, end = len(tokenizer), tokenizer.encode("</think>", add_special_tokens=False)
    start = [] if is_begun else tokenizer.encode("<think>", add_special_tokens=False)
    constraint = made(tokenizer, form, is_begun=is_begun, max_tokens=5)
    letter, digit = (tokenizer.convert_tokens_to_ids(text) for text in "a7")
    for token in start:
        constraint.accept(token)
    for _ in range(5):
        assert len(filled(constraint, size)) > 1
        constraint.accept(letter)
    for _ in range(2):
        for token in end:
            assert filled(constraint, size) == {token}
            constraint.accept(token)
        assert len(filled(constraint, size)) > 1
        constraint.accept(digit)
        assert (letter in filled(constraint, size)) == (not form)
        constraint.rollback(len(end) + 1)
    constraint.rollback(1)
    assert len(filled(constraint, size)) > 1
    for token in end:  # the model ends it in time
        constraint.accept(token)
    assert (letter in filled(constraint, size)) == (not form)


def test_a_bound_waits_for_a_character(tokenizer: Any) -> None:
    """Its end does not come between a character's bytes."""
    size = len(tokenizer)
    first, second, *_ = [token for token in tokenizer.encode("日", add_special_tokens=False) if token > 10][-3:]
    constraint = made(tokenizer, {"regex": "[0-9]"}, is_begun=True, max_tokens=1)
    constraint.accept(first)
    allowed = filled(constraint, size)
    assert second in allowed
    assert tokenizer.encode("</think>", add_special_tokens=False)[0] not in allowed


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llava), dtype="float32", max_model_len=200, block_size=8, num_kv_blocks=60) as loaded:
        yield loaded


def test_outputs_of_a_model(llm: LLM, tiny_llava: Path) -> None:
    """Bounded reasoning, then the form; the same alone, in a batch, and preempted."""
    texts: list[dict[str, Any]] = [{"choice": ["red", "blue"]}, {"regex": "[0-9]{3}"}, {}]
    params = [
        SamplingParams(
            seed=number, max_tokens=60,
            structured_outputs=StructuredOutputsParams(
                **texts[number % 3], reasoning={"is_begun": True, "max_tokens": number}
            ),
        )
        for number in range(9)
    ]  # fmt: skip
    prompts = [f"Think {number}: <think>" for number in range(9)]
    together = llm.generate(prompts, params, use_tqdm=False)
    for number, output in enumerate(together):
        _, end, rest = output.outputs[0].text.partition("</think>")
        assert end, output.outputs[0].text
        assert number % 3 == 2 or regex.fullmatch(r"[ \n]{0,2}(red|blue|[0-9]{3})", rest)
    assert len({output.outputs[0].text for output in together}) == 9
    alone = [llm.generate(*one, use_tqdm=False)[0] for one in zip(prompts, params, strict=True)]
    with LLM(str(tiny_llava), dtype="float32", max_model_len=200, block_size=8, num_kv_blocks=26) as small:
        preempted = generate_together(small, prompts, params)
        assert small.engine.scheduler.get_stats().num_preemptions > 0
    for outputs in (alone, preempted):
        assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in together]


def test_an_end_of_reasoning_that_ends_the_output(tokenizer: Any) -> None:
    """It is forced where nothing comes behind it; where a form does, the request is refused, as it would never end."""
    ends = frozenset(StructuredConstraints(tokenizer, len(tokenizer)).vocabulary.marker("</think>").token_ids)
    constraints = StructuredConstraints(tokenizer, len(tokenizer))
    bound = ReasoningParams(is_begun=True, max_tokens=0)
    assert filled(constraints(bound.before(None), ends), len(tokenizer)) <= ends
    definition = StructuredOutputsParams(regex="a", reasoning=bound).definition()
    constraints(definition, frozenset({tokenizer.eos_token_id}))
    with pytest.raises(InvalidParameterError, match="'</think>' is a token that ends the output"):
        constraints(definition, ends)

"""Masks of one sequence: exactly the tokens after which the text can still come to have the form.

The oracle is the library `regex`, which tells whether a text can become a match, and the tokenizers' own `decode`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import regex
from transformers import AutoTokenizer

from corellm.errors import InvalidParameterError, RequestFailedError
from corellm.sampling.constraint import num_words
from corellm.structured_outputs import ReasoningParams, StructuredOutputsParams
from corellm_structured.constraint import StructuredConstraint, StructuredConstraints
from corellm_structured.grammars import compiled
from corellm_structured.grammars import tokenizer_of as tokenizer_of_bytes

PATTERNS = [r"[a-c ]{2,5}e?", r"(yes|no), [0-9]{1,2}\.", r"the (c|t)[a-z]*( \w)?", r"é?日{1,2}"]
KINDS = ["fuyu", "kosmos2", "llava", "mllama"]
"""Plugins whose tiny checkpoints have tokenizers of different kinds."""


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    @cache
    def load(family: str) -> Any:
        module = __import__(f"corellm_{family}.tiny", fromlist=["make_tiny_checkpoint"])
        path: Path = module.make_tiny_checkpoint(tmp_path_factory.mktemp(family))
        return AutoTokenizer.from_pretrained(path)

    return load


def filled(constraint: StructuredConstraint, vocab_size: int) -> set[int]:
    mask = np.zeros(num_words(vocab_size), dtype=np.int32)
    constraint.fill(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def made(constraints: StructuredConstraints, stops: frozenset[int] = frozenset(), **form: Any) -> StructuredConstraint:
    return constraints(StructuredOutputsParams(**form).definition(), stops)


@pytest.mark.parametrize("family", KINDS)
def test_masks_are_what_a_regex_can_still_become(family: str, tokenizer_of: Callable[[str], Any]) -> None:
    """On the way of random outputs: of logits that are wider than the vocabulary, and narrower."""
    tokenizer, draws = tokenizer_of(family), random.Random(0)
    before = tokenizer.encode("say:", add_special_tokens=False)
    prefix = tokenizer.decode(before)
    special = {*tokenizer.all_special_ids, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)}
    adds = {
        token: tokenizer.decode([*before, token], clean_up_tokenization_spaces=False)[len(prefix) :]
        for token in range(len(tokenizer))
        if token not in special
    }
    texts = {token: text for token, text in adds.items() if text and "\ufffd" not in text}
    steps = 0
    for vocab_size in (len(tokenizer) + 40, len(tokenizer) - 20):
        constraints, stop = StructuredConstraints(tokenizer, vocab_size), min(special)
        for pattern in PATTERNS:
            constraint, output = made(constraints, frozenset({stop}), regex=pattern), ""
            while True:
                got = filled(constraint, vocab_size)
                assert filled(constraint, vocab_size) == got
                assert (stop in got) == (regex.fullmatch(pattern, output) is not None)
                whole = {token for token in got - {stop} if token in texts}
                wanted = {t for t, text in texts.items() if regex.fullmatch(pattern, output + text, partial=True)}
                assert whole == {token for token in wanted if token < vocab_size}
                assert not got & special - {stop}
                if not whole:
                    break
                token = draws.choice(sorted(whole))
                constraint.accept(token)
                output, steps = output + texts[token], steps + 1
    assert steps > 10


def test_what_is_rolled_back_leaves_no_trace(tokenizer_of: Callable[[str], Any]) -> None:
    """Drafts of any length, also to the end of the grammar; and a sequence does not follow another one's tokens."""
    tokenizer, draws = tokenizer_of("llava"), random.Random(1)
    size, eos = len(tokenizer), tokenizer.eos_token_id
    constraints = StructuredConstraints(tokenizer, size)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form: dict[str, Any] = {"json": schema, "disable_any_whitespace": True}
    constraint, ended = made(constraints, frozenset({eos}), **form), 0
    for _ in range(30):
        again = made(constraints, frozenset({eos}), **form)
        accepted: list[int] = []
        for _ in range(draws.randint(0, 25)):
            choices = sorted(filled(constraint, size) - {eos})
            assert filled(again, size) == filled(constraint, size)
            if not choices:
                ended += 1
                break
            accepted.append(draws.choice(choices))
            constraint.accept(accepted[-1])
            again.accept(accepted[-1])
        constraint.rollback(len(accepted))
    assert ended > 1
    assert filled(constraint, size) == filled(made(constraints, frozenset({eos}), **form), size)


@pytest.mark.parametrize("family", KINDS)
def test_what_is_foreseen(family: str, tokenizer_of: Callable[[str], Any]) -> None:
    """The text that must come, in tokens that a mask allows each; nothing where there is a choice, or an end."""
    tokenizer = tokenizer_of(family)
    size = len(tokenizer)
    constraint = made(StructuredConstraints(tokenizer, size), frozenset({3}), regex="[ab]b the name[cd]")
    assert not constraint.foresee()
    constraint.accept(tokenizer.convert_tokens_to_ids("b"))
    foreseen = constraint.foresee()
    assert tokenizer.decode([*tokenizer.encode("b", add_special_tokens=False), *foreseen]).endswith("bb the name")
    assert foreseen == constraint.foresee()
    for token in foreseen:
        assert token in filled(constraint, size)
        constraint.accept(token)
    assert not constraint.foresee()
    constraint.accept(tokenizer.convert_tokens_to_ids("c"))
    assert not constraint.foresee()
    constraint.rollback(1 + len(foreseen))
    assert foreseen == constraint.foresee()


def test_where_an_output_ends(tokenizer_of: Callable[[str], Any]) -> None:
    """Any tokens that end the output may come there and nowhere else, ordinary ones, too; without any, none may."""
    tokenizer = tokenizer_of("llava")
    size, (a, b) = len(tokenizer), (tokenizer.convert_tokens_to_ids(letter) for letter in "ab")
    constraints = StructuredConstraints(tokenizer, size)
    for stops in (frozenset({tokenizer.eos_token_id}), frozenset({3, b}), frozenset()):
        constraint = made(constraints, stops, regex="ab?")
        assert filled(constraint, size) & {a, b, *stops} == {a}
        constraint.accept(a)
        assert filled(constraint, size) == {b, *stops}
        if b not in stops:
            constraint.accept(b)
            assert filled(constraint, size) == stops


def test_a_token_that_was_not_allowed_is_an_error(tokenizer_of: Callable[[str], Any]) -> None:
    tokenizer = tokenizer_of("llava")
    constraints = StructuredConstraints(tokenizer, len(tokenizer))
    constraint = made(constraints, regex="ab")
    with pytest.raises(InvalidParameterError, match="does not take token"):
        constraint.accept(tokenizer.convert_tokens_to_ids("b"))
    with pytest.raises(InvalidParameterError, match="cannot take back 3 tokens"):
        made(constraints, regex="ab").rollback(3)


def test_a_panic_of_the_library_is_an_error_of_the_request(tokenizer_of: Callable[[str], Any]) -> None:
    """It is no `Exception`; an interrupt stays what it is."""

    class PanicException(BaseException):
        pass

    tokenizer = tokenizer_of("llava")
    for error, wanted in ((PanicException("index out of bounds"), RequestFailedError), (KeyboardInterrupt(), None)):
        constraint = made(StructuredConstraints(tokenizer, len(tokenizer)), regex="ab")
        constraint.__dict__["_matcher"] = Mock(
            consume_token=Mock(side_effect=error), rollback=Mock(side_effect=error),
            unsafe_compute_mask_ptr=Mock(side_effect=error), compute_ff_bytes=Mock(side_effect=error),
        )  # fmt: skip
        fill = partial(filled, vocab_size=len(tokenizer))
        for call in (lambda c: c.accept(1), lambda c: c.rollback(1), lambda c: c.foresee(), fill):
            with pytest.raises(wanted or KeyboardInterrupt):
                call(constraint)


def test_a_form_that_takes_too_long_to_follow(
    tokenizer_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request fails, at a mask and at a token; here, where all is slow and there is no time at all."""
    tokenizer = tokenizer_of("llava")
    constraints = StructuredConstraints(tokenizer, len(tokenizer))
    constraint = made(constraints, regex="[a-z]+")
    allowed = filled(constraint, len(tokenizer))
    monkeypatch.setattr("corellm_structured.constraint.MOST_SECONDS", 0.0)
    constraint.accept(min(allowed))
    monkeypatch.setattr("corellm_structured.constraint.SLOW_SECONDS", -1.0)
    constraint.accept(min(allowed))  # from here on it is measured
    assert not constraint.foresee()
    for follow in (lambda: filled(constraint, len(tokenizer)), lambda: constraint.accept(min(allowed))):
        with pytest.raises(InvalidParameterError, match="make it simpler"):
            follow()


def test_time_is_counted_on_where_a_form_begins_again(
    tokenizer_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error behind drafts: the output is followed from its beginning, and what was spent is spent."""
    tokenizer = tokenizer_of("llava")
    size = len(tokenizer)
    constraints = StructuredConstraints(tokenizer, size)
    reasoning = ReasoningParams(start="<a>", end="</a>", max_tokens=4)
    for more in ({}, {"reasoning": reasoning}):
        constraint: Any = made(constraints, regex="[ab]c", **more)
        first = filled(constraint, size)
        constraint.accept(tokenizer.convert_tokens_to_ids("a"))
        assert filled(constraint, size) != first
        constraint.restart()
        assert filled(constraint, size) == first
        monkeypatch.setattr("corellm_structured.constraint.SLOW_SECONDS", -1.0)
        filled(constraint, size)  # from here on it is measured
        filled(constraint, size)
        constraint.restart()
        monkeypatch.setattr("corellm_structured.constraint.MOST_SECONDS", 0.0)
        monkeypatch.setattr("corellm_structured.constraint.SLOW_SECONDS", float("inf"))
        with pytest.raises(InvalidParameterError, match="make it simpler"):
            filled(constraint, size)
        monkeypatch.undo()


def test_what_is_measured_after_a_slow_call(
    tokenizer_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many calls as are said, and no others: asking for the processor's time costs as much as a usual token."""
    tokenizer = tokenizer_of("llava")
    constraint = made(StructuredConstraints(tokenizer, len(tokenizer)), regex="[a-z]+")
    token = min(filled(constraint, len(tokenizer)))
    for name, value in (("MOST_SECONDS", 0.0), ("MEASURED_CALLS", 3), ("SLOW_SECONDS", -1.0)):
        monkeypatch.setattr(f"corellm_structured.constraint.{name}", value)
    constraint.accept(token)
    monkeypatch.setattr("corellm_structured.constraint.SLOW_SECONDS", float("inf"))
    for _ in range(3):
        with pytest.raises(InvalidParameterError, match="make it simpler"):
            constraint.accept(token)
    constraint.accept(token)


AMBIGUOUS = 'start: "open!" e | /[a-z]{300}/\ne: e e e | e e | "a" | "b"'


def test_a_grammar_that_reads_a_text_in_many_ways(tokenizer_of: Callable[[str], Any]) -> None:
    """Its check finds nothing, as only some outputs become slow: then the request fails, however long a token took."""
    tokenizer = tokenizer_of("llava")
    size, tokens = len(tokenizer), [tokenizer.convert_tokens_to_ids(letter) for letter in "open!" + "ab" * 60]
    constraints = StructuredConstraints(tokenizer, size)
    definition = StructuredOutputsParams(grammar=AMBIGUOUS).definition()
    constraints(definition, None)
    constraint = constraints(definition, frozenset({tokenizer.eos_token_id}))

    def follow() -> None:
        for token in tokens:
            constraint.accept(token)

    with pytest.raises(InvalidParameterError, match=r"does not take token .* items"):
        follow()


def test_a_prepared_tokenizer_is_not_read_again(
    tokenizer_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizer_of("llava")
    constraints = StructuredConstraints(tokenizer, len(tokenizer))
    constraints.prepare()
    monkeypatch.setattr("corellm_structured.vocabulary.bytes_of_tokens", Mock(side_effect=AssertionError))
    monkeypatch.setattr("corellm_structured.vocabulary.tokenizer_of", Mock(side_effect=AssertionError))
    assert filled(made(constraints, regex="ab"), len(tokenizer))


def test_an_object_of_many_properties() -> None:
    """More items in a step than the library allows by itself, with a vocabulary in which many tokens are text."""
    draws = random.Random(0)
    words = ["".join(draws.choices('abk0123":, {}', k=draws.randint(2, 6))).encode() for _ in range(20_000)]
    tokens = [bytes([value]) for value in range(256)] + sorted({*words})
    schema = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(250)}}
    form = StructuredOutputsParams(json={**schema, "additionalProperties": False})
    matcher = compiled(form.definition(), tokenizer_of_bytes(tokens))
    for value in b'{"k0":"ab","k1":"':
        assert matcher.consume_token(value)
        matcher.compute_bitmask()
    assert not matcher.is_error(), matcher.get_error()

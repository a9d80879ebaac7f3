"""Compiling grammars, within limits.

Knows llguidance's limits and how it reports what is wrong; knows tokens by their bytes, and no sequences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from corellm_structured.forms import OPTIONS, form_of, grammar_of, wrong

_LIMITS = LLParserLimits(max_lexer_states=50_000, step_max_items=1_000_000, verbose_errors=False)
"""The library's own, but for two. The states of a lexer take up to 2 KB each, and each sequence has some. The limit of
items in a step is too low for an object of 250 properties with a large vocabulary.
"""
_LIMITS_OF_GRAMMARS = LLParserLimits(max_lexer_states=50_000, max_items_in_row=500, verbose_errors=False)
"""The same for what may read a text in many ways, as no other form does: a row of the parser takes time as the square
or the cube of its items, 4 ms of a processor with as many. The step's limit is the library's.
"""
_MAX_MESSAGE = 500
SPECIAL = b"\xff"
"""What the library's names of special tokens begin with among a vocabulary's bytes."""


def tokenizer_of(tokens: Sequence[bytes]) -> LLTokenizer:
    """Return the library's form of a vocabulary; the end is one token more, after the last."""
    return LLTokenizer(_Spelt([*tokens, SPECIAL + b"<end>"]), eos_token=len(tokens))  # type: ignore[arg-type]


class _Spelt:
    """The library's interface of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens, self.eos_token_id = tokens, len(tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes | str) -> list[int]:
        raise NotImplementedError("grammars force no tokens")


def compiled(definition: str, tokenizer: LLTokenizer, around: str | None = None) -> LLMatcher:
    """Return a matcher at the start of an output.

    Args:
        definition: of a form.
        tokenizer: of `tokenizer_of`.
        around: a grammar of the whole output, which has the form as `@form`; None if that is all of it.

    Raises:
        InvalidParameterError: the grammar is wrong, cannot be held to exactly, or is too large.
    """
    grammar, form = grammar_of(definition), form_of(definition)
    parts = [{"name": "form", "lark_grammar": grammar}]
    if around is not None:
        parts.insert(0, {"name": "output", "lark_grammar": OPTIONS + around})
    limits = _LIMITS_OF_GRAMMARS if form == "grammar" else _LIMITS
    matcher = LLMatcher(tokenizer, json.dumps({"grammars": parts}), log_level=0, limits=limits)
    problems = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
    if problems:
        raise wrong(form, f"llguidance refuses it: {_short(problems[0])}")
    return matcher


def _short(message: str) -> str:
    """Return what is wrong, without the grammar around it."""
    lines = [line.strip() for line in message.splitlines() if " | " not in line and "^" not in line]
    told = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", " ".join(" ".join(lines).split()))
    return told[:_MAX_MESSAGE]

"""The child process that tries what a request asks for: `python -m corellm_structured.worker`.

A request is a definition, the result is empty, or `{"refused": message, "param": name}`. It compiles the definition and
follows the beginning of an output, in limited memory and time, as the engine's steps would wait for both.
"""

from __future__ import annotations

import os
import time
from random import Random
from typing import Any

from llguidance import LLMatcher

from corellm.children.serving import serve
from corellm.errors import InvalidParameterError
from corellm_structured.forms import SPECIAL_NAME, form_of, grammar_of, wrong
from corellm_structured.grammars import SPECIAL, compiled, tokenizer_of

MAX_MEMORY = 1 << 28
"""Bytes of this process, with Python and its libraries."""
MAX_PROCESSOR_SECONDS = 0.5
"""Of compiling, and of following the beginning of an output: steps of the engine wait as long."""
_TRIED = 256
"""Bytes of an output, any, that are followed."""

_BYTES = [bytes([value]) for value in range(256)]


def check(definition: str) -> dict[str, Any]:
    """Compile a definition; what is wrong with it is the result."""
    began = time.process_time()
    try:
        special = sorted({*SPECIAL_NAME.findall(grammar_of(definition))})
        tokens = [*_BYTES, *(SPECIAL + name.encode() for name in special)]
        _try(form_of(definition), compiled(definition, tokenizer_of(tokens)), len(tokens))
    except InvalidParameterError as error:
        return {"refused": str(error), "param": error.param}
    if time.process_time() - began > MAX_PROCESSOR_SECONDS:
        raise ValueError("it takes too long")
    return {}


def _try(form: str, matcher: LLMatcher, num_tokens: int) -> None:
    """Follow the beginning of an output.

    Raises:
        InvalidParameterError: there is none, or following it takes more than the limits.
    """
    draws = Random(0)
    for place in range(_TRIED):
        mask = matcher.compute_bitmask()
        may = [value for value in range(num_tokens) if mask[value // 8] >> value % 8 & 1]
        if place == 0 and not may and not matcher.is_accepting():
            raise wrong(form, "no output has this form")
        if matcher.is_error() or not may or not matcher.consume_token(draws.choice(may)):
            break
    if matcher.is_error():
        raise wrong(form, f"following an output takes too much: {matcher.get_error():.200}")


if __name__ == "__main__":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where the library would write that memory is at an end
    serve(check, max_memory=MAX_MEMORY)

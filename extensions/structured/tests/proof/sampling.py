"""Sampled outputs of a model of random weights, held to all kinds of forms, and judged by others' libraries.

A whole output is judged by `jsonschema` and `regex`. One that was cut is the beginning of a whole one: of a text of its
form, which `regex` tells, or for JSON of a text that is found here and that `jsonschema` takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

import regex
from jsonschema import Draft202012Validator

from corellm import SamplingParams, StructuredOutputsParams
from corellm_structured.grammars import compiled
from extensions.structured.tests.proof.schemas import bounded_regex, bounded_schema
from extensions.structured.tests.proof.suite import BYTES, CASES, refusal
from tests.fixtures import random_image

_TEXT = "Look with care, one two three four five six seven. "
_GRAMMARS = {
    'root ::= [0-9] ("+" [0-9])*': r"[0-9](\+[0-9])*",
    'start: "<" inner ">"\ninner: inner "," WORD | WORD\nWORD: /[a-z]{1,3}/': r"<[a-z]{1,3}(,[a-z]{1,3})*>",
    'root ::= "(" root ")" | [0-9]': r"(?P<r>\((?&r)\)|[0-9])",
}
"""Grammars, and the same as regexes."""
_MOST_ADDED = 2000
_CLOSING = b'"}]'


@dataclass(frozen=True)
class Sample:
    """A request."""

    prompt: Any
    params: SamplingParams
    form: dict[str, Any] | None
    """Of its output, as fields of `StructuredOutputsParams`; None for any."""


def samples(seed: int, count: int) -> list[Sample]:
    """Requests of all kinds of forms and of none: a fifth."""
    rng = Random(seed)
    schemas = [case["schema"] for cases in CASES.values() for case in cases]
    # of regexes, `jsonschema` knows those of Python alone
    taken = [one for one in schemas if refusal(one) is None and "\\\\p" not in json.dumps(one)]
    return [_sample(rng, number, taken) for number in range(count)]


def _sample(rng: Random, number: int, taken: list[Any]) -> Sample:
    form = _form(rng, taken)
    params: dict[str, Any] = {
        "temperature": 1.0, "seed": number, "max_tokens": rng.choice([8, 40, 120]), "logprobs": 1,
    }  # fmt: skip
    if form is not None:
        if "json" in form and rng.random() < 0.5:
            form["disable_any_whitespace"] = True
        params["structured_outputs"] = StructuredOutputsParams(**form)
    prompt: Any = _TEXT * rng.randint(0, 2) + rng.choice(["yes", "How many?", "left or right?"])
    if number % 8 == 0:
        image = random_image(40, 30, number % 5)
        prompt = {"prompt": f"USER: <image>\n{prompt} ASSISTANT:", "multi_modal_data": {"image": image}}
    return Sample(prompt, SamplingParams(**params), form)


def _form(rng: Random, taken: list[Any]) -> dict[str, Any] | None:
    kind = rng.choices(["bounded", "suite", "regex", "choice", "grammar", "object", "none"], [6, 6, 3, 1, 2, 1, 5])[0]
    if kind == "none":
        return None
    if kind == "bounded":
        return {"json": bounded_schema(rng)}
    if kind == "suite":
        return {"json": rng.choice(taken)}
    if kind == "regex":
        return {"regex": bounded_regex(rng, 3)}
    if kind == "choice":
        return {"choice": [f"shape {rng.randint(0, 9999)}" for _ in range(rng.randint(1, 500))]}
    return {"json_object": True} if kind == "object" else {"grammar": rng.choice(list(_GRAMMARS))}


def problem(form: dict[str, Any], text: str, *, is_whole: bool) -> str | None:
    """Return what is wrong with an output, or None: whole, it has its form; cut, it begins a text that has it."""
    if "json" in form or "json_object" in form:
        text = text if is_whole else text.rstrip("\ufffd")  # the bytes of a character, of which others would follow
        schema = form.get("json", {"type": "object"})
        return _json_problem(schema, text if is_whole else _finished(form, text))
    pattern = form.get("regex") or _GRAMMARS.get(form.get("grammar", "")) or "|".join(form["choice"])
    if regex.fullmatch(pattern, text.rstrip("\ufffd"), partial=not is_whole) is None:
        return f"{text!r} is no {'match' if is_whole else 'beginning of a match'} of {pattern!r}"
    return None


def _json_problem(schema: Any, text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text!r} is no JSON: {error}"
    found = next(Draft202012Validator(schema).iter_errors(value), None)
    return None if found is None else f"{text!r} is not of {schema!r}: {found.message}"


def _finished(form: dict[str, Any], text: str) -> str:
    """A text that goes on from another one until it may end; which is found does not matter, as it is judged."""
    matcher, rng, added = compiled(StructuredOutputsParams(**form).definition(), BYTES), Random(0), bytearray()
    if matcher.try_consume_tokens([*text.encode()]) != len(text.encode()):
        return text
    while not matcher.is_accepting() and len(added) < _MOST_ADDED:
        mask = matcher.compute_bitmask()
        may = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        closing = [byte for byte in may if byte in _CLOSING and rng.random() < 0.7]  # in a format they may be text
        shown = [byte for byte in may if 32 < byte < 127]
        if not may or not matcher.consume_token(byte := rng.choice(closing or shown or may)):
            break
        added.append(byte)
    return text + added.decode(errors="replace")

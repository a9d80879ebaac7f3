"""JSON Schema's own test suite: no keyword is loosened, and what is refused is what the page says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from corellm.errors import InvalidParameterError
from corellm.structured_outputs import StructuredOutputsParams
from corellm_structured.grammars import compiled
from extensions.structured.tests.proof.suite import BYTES, CASES, PAGE, STRICTER, page

REFUSED = {
    "contains", "defs", "dependentRequired", "dependentSchemas", "dynamicRef", "if-then-else", "maxContains",
    "minContains", "not", "oneOf", "propertyNames", "refRemote", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems", "vocabulary",
}  # fmt: skip
"""Files of which most cases cannot be held to: the keyword is refused, or a reference to elsewhere, or a `oneOf` whose
parts can both hold."""


def allows(matcher: LLMatcher, data: Any) -> bool:
    spelt, following = list(json.dumps(data, ensure_ascii=False).encode()), matcher.deep_copy()
    return following.try_consume_tokens(spelt) == len(spelt) and following.is_accepting()


@pytest.mark.parametrize("file", CASES)
def test_a_file_of_the_suite(file: str) -> None:
    """A schema that is taken allows no data that is not valid, and the valid data."""
    taken = refused = 0
    for case in CASES[file]:
        if not isinstance(case["schema"], dict):
            continue
        try:
            matcher = compiled(StructuredOutputsParams(json=case["schema"]).definition(), BYTES)
        except InvalidParameterError:
            refused += 1
            continue
        taken += 1
        for test in case["tests"]:
            allowed = allows(matcher, test["data"])
            told = (case["description"], test["description"])
            assert test["valid"] or not allowed, told
            assert allowed or not test["valid"] or file in STRICTER, told
    assert (refused > taken) is (file in REFUSED)


def test_the_page_says_what_is_refused() -> None:
    """It is written by `python -m extensions.structured.tests.proof.suite`."""
    assert PAGE.read_text(encoding="utf-8") == page()

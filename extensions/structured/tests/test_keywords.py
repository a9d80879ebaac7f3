"""JSON Schema's own test suite: no keyword is loosened, and what is refused is what the page says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from corellm.errors import InvalidParameterError
from corellm.structured_outputs import StructuredOutputsParams
from corellm_structured.grammars import compiled, tokenizer_of

SUITE = Path(__file__).parent / "json_schema_test_suite" / "draft2020-12.json"
CASES: dict[str, list[dict[str, Any]]] = json.loads(SUITE.read_text(encoding="utf-8"))
BYTES = tokenizer_of([bytes([value]) for value in range(256)])
STRICTER = {"allOf": "the order of properties", "const": "1.0 is not 1, and their order", "enum": "1.0 is not 1",
            "format": "a format is asserted", "type": "1.0 is no integer"}  # fmt: skip
"""Files of which valid data is not allowed, and why: another spelling of it is."""
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

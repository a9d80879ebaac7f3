"""JSON Schema's own test suite: its cases, which of them outputs can be held to, and the page that says so.

python -m extensions.structured.tests.proof.suite        writes docs/run/json-schema.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.errors import InvalidParameterError
from corellm.structured_outputs import StructuredOutputsParams
from corellm_structured.grammars import compiled, tokenizer_of

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "run" / "json-schema.md"
SUITE = Path(__file__).parents[1] / "json_schema_test_suite" / "draft2020-12.json"
CASES: Mapping[str, list[dict[str, Any]]] = json.loads(SUITE.read_text(encoding="utf-8"))
BYTES = tokenizer_of([bytes([value]) for value in range(256)])
STRICTER = {
    "allOf": "properties come in the schema's order",
    "const": "properties come in its order, and 1.0 is not written for 1",
    "enum": "1.0 is not written for 1", "format": "a format is asserted", "type": "1.0 is not written for an integer",
}  # fmt: skip
"""Files of which some valid data is not written, and why: another spelling of it is."""
_HEAD = """# JSON Schema's test suite

What comes of each schema of the
[JSON Schema Test Suite](https://github.com/json-schema-org/JSON-Schema-Test-Suite), draft 2020-12 without its optional
parts. `make forms` writes this page, and `make test` compares it.

- *taken*: an output is held to it. Of the suite's data, what is not valid is never written, and what is valid can be,
  but for another spelling of the same value where the last column says so.
- *refused*: a 400 that says why. No schema is loosened.

"""


def refusal(schema: Any) -> str | None:
    """Return why outputs cannot be held to a schema, or None if they can be."""
    try:
        compiled(StructuredOutputsParams(json=schema).definition(), BYTES)
    except InvalidParameterError as error:
        return str(error)
    return None


def page() -> str:
    """Return the page."""
    refused = {
        file: [(case["description"], why) for case in cases if (why := refusal(case["schema"])) is not None]
        for file, cases in CASES.items()
    }
    count, total = sum(map(len, refused.values())), sum(map(len, CASES.values()))
    rows = [
        f"| `{file}` | {len(cases) - len(refused[file])} | {len(refused[file])} | {STRICTER.get(file, '')} |"
        for file, cases in CASES.items()
    ]
    told = [f"{total} schemas: {total - count} taken, {count} refused.\n"]
    told += ["| file of the suite | taken | refused | |", "|---|---|---|---|", *rows, "", "## What is refused", ""]
    told += ["| file | schema | why |", "|---|---|---|"]
    told += [f"| `{file}` | {_cell(named)} | {_reason(why)} |" for file in CASES for named, why in refused[file]]
    return _HEAD + "\n".join([*told, ""])


def _reason(why: str) -> str:
    """What is wrong with a schema, without what all such errors begin with."""
    for before in ("structured_outputs: json", "llguidance refuses it", "failed to compile JSON schema"):
        why = why.rpartition(f"{before}: ")[2] if f"{before}: " in why else why
    return _cell(re.sub(r"^Unimplemented keys: \[(.*)\]$", lambda found: found[1].replace('"', "`"), why))


def _cell(text: str) -> str:
    return re.sub(r"(https?://[^\s'\"]+)", r"`\1`", text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")

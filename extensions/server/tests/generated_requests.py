"""schemathesis against a running server: requests made from its OpenAPI document, right ones and wrong ones.

Checks statuses, headers, content types and bodies of the responses against the document. Knows no endpoint.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from extensions.server.tests.conftest import Running

WHOLE = 100
"""Examples from which on every operation gets all kinds of requests."""


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Operations by method and path."""
    return {
        (method, path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def assert_as_documented(
    running: Running, folder: Path, examples: int, *, key: str = "", paths: str = ".", refused: str = "$^"
) -> None:
    """Every operation gets generated requests, and all responses are as documented.

    The document cannot say all that is wrong (a token id that the model lacks): data that it allows may be refused.

    Args:
        running: the server.
        folder: an empty one.
        examples: random requests of each operation. Beside them every value of every field is tried; of few examples
            only once of an operation that has several names, and not of `refused` ones.
        key: the server's.
        paths: those that are tried; a regular expression.
        refused: those whose requests this model refuses; a regular expression.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    document = running.get("/openapi.json", headers=headers).json()
    tried = {names: operation for names, operation in operations(document).items() if re.search(paths, names[1])}
    once: set[str] = set()
    few = []
    for (method, path), operation in tried.items():
        form = json.dumps({**operation, "operationId": method}, sort_keys=True)
        if examples < WHOLE and (form in once or re.search(refused, path)):
            few.append(f"{method.upper()} {path}")
        once.add(form)
    settings = f"[[operations]]\ninclude-name = {json.dumps(few)}\nphases.coverage.enabled = false\n" if few else ""
    (folder / "schemathesis.toml").write_text(settings)
    ran = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json",
            *(f"--header={name}: {value}" for name, value in headers.items()), "--include-path-regex", paths,
            "--exclude-checks", "positive_data_acceptance", "--phases", "coverage,fuzzing",
            "--max-examples", str(examples), "--generation-deterministic", "--no-shrink",
            "--suppress-health-check", "all", "--request-timeout", "300",
        ],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"Tested: {len(tried)}" in ran.stdout
    assert re.search(rf"Coverage \(.*\n\n.* {len(tried) - len(few)} passed", ran.stdout), ran.stdout

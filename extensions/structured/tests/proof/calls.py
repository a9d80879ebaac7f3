"""Damaged outputs of tool calls, read by all parsers, cut anywhere, and some of them over HTTP in all APIs.

    python -m extensions.structured.tests.proof.calls --cases 2000 --seed 0

No character is lost, arguments are JSON or the beginning of it, and where an output is cut makes no difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from pydantic_core import from_json
from tqdm import tqdm

from corellm import AsyncLLM
from corellm_llava.tiny import make_tiny_checkpoint
from corellm_server.parsing.names import TOOLS as KIND
from corellm_server.parsing.names import _offered
from extensions.server.tests.conftest import MODEL, Running, serving, user
from extensions.server.tests.parsing.forms import FORMS, TOOLS, found, read, source_of
from extensions.server.tests.parsing.test_tool_parsers import PIECES
from extensions.server.tests.scripted import ScriptedLLM
from tests.templates.published import QWEN

PARSERS: dict[str, Any] = _offered(KIND)
OUTPUTS = [(name, form[0]) for name, forms in FORMS.items() for form in forms.values()]
MOST_SECONDS = 2.0
"""Of a processor, for one output, read four times."""
HTTP_SHARE = 5
"""One output in so many is sent over HTTP, too."""
_FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
_ANTHROPICS = [{"name": one["name"], "input_schema": one["parameters"]} for one in (tool["function"] for tool in TOOLS)]


def damaged(rng: Random) -> tuple[str, str]:
    """A parser's name and an output of its form, or of another one, with up to six damages."""
    name, text = rng.choice(OUTPUTS)
    for _ in range(rng.randint(0, 6)):
        start = rng.randint(0, len(text))
        end = min(len(text), start + rng.choice([0, 0, 1, 3, 12, len(text)]))
        new = rng.choice([
            "", text[start:end] * 2, rng.choice(PIECES), rng.choice(PIECES) * rng.choice([2, 40, 400]),
            rng.choice(OUTPUTS)[1][rng.randint(0, 40) :], "".join(rng.choices('\t"\\é\U0001f600', k=4)),
        ])  # fmt: skip
        text = (text[:start] + new + text[end:])[:20_000]
    return (rng.choice(list(PARSERS)) if rng.random() < 0.1 else name), text


def pieces_of(rng: Random, text: str) -> list[str]:
    """The output, cut at random places."""
    cuts = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 12)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def check(name: str, text: str, rng: Random) -> int:
    """Read an output in several ways; returns the number of calls in it.

    Raises:
        AssertionError: characters are lost, arguments are no JSON, or a cut makes a difference.
    """
    whole = read(PARSERS[name](TOOLS), [text])
    told = f"{name}: {text[:2000]!r}"
    assert source_of(whole) == text, told
    want = found(whole)
    for pieces in (list(text), pieces_of(rng, text), pieces_of(rng, text)):
        got = read(PARSERS[name](TOOLS), pieces)
        assert source_of(got) == text, (told, pieces[:20])
        assert found(got) == want, (told, pieces[:20])
    assert all(begins_object(arguments) for _, arguments in want[2]), told
    return len(want[2])


def begins_object(arguments: str) -> bool:
    """Whether they are a JSON object, or the beginning of one: of a call that broke."""
    try:
        return not arguments or isinstance(from_json(arguments, allow_partial="trailing-strings"), dict)
    except ValueError:
        return False


def bodies(stream: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """A request of each API."""
    given = {"model": MODEL, "stream": stream}
    yield "/v1/chat/completions", {**given, "messages": user("x"), "tools": TOOLS}
    yield "/v1/responses", {**given, "input": "x", "tools": _FLAT}
    yield "/v1/messages", {**given, "messages": user("x"), "tools": _ANTHROPICS, "max_tokens": 9}


def send(running: Running, scripted: ScriptedLLM, text: str, rng: Random) -> None:
    """Have a server's model write an output, whole and streamed, in each API."""
    for path, body in bodies(stream=False):
        scripted.outputs, scripted.cuts = [text], None
        got = running.post(path, body)
        assert got.status_code == 200, (path, text, got.text)
        if path.endswith("completions"):
            calls = got.json()["choices"][0]["message"].get("tool_calls") or ()
            assert all(begins_object(call["function"]["arguments"]) for call in calls), (path, text)
    for path, body in bodies(stream=True):
        scripted.outputs = [text]
        scripted.cuts = sorted({rng.randint(1, max(1, len(text) - 1)) for _ in range(rng.randint(0, 9))})
        got = running.post(path, body)
        assert got.status_code == 200, (path, text, got.text)
        assert "event: error" not in got.text and '"error":{' not in got.text, (path, text, got.text[-500:])  # noqa: PT018


def run(folder: Path, seed: int, cases: int, *, show: bool = False) -> Counter[str]:
    """Read all outputs; returns how many calls each parser found, and how many outputs went over HTTP.

    Raises:
        AssertionError: as `check` and `send`.
    """
    counts: Counter[str] = Counter()
    with ExitStack() as stack, tqdm(total=cases, disable=not show) as bar:
        llm = AsyncLLM(str(_told_of_tools(folder)), dtype="float32")
        stack.callback(llm.close)
        servers: dict[str, tuple[Running, ScriptedLLM]] = {}
        for number in range(cases):
            rng = Random(f"{seed} {number}")
            name, text = damaged(rng)
            try:
                began = time.process_time()
                counts[f"calls of {name}"] += check(name, text, rng)
                assert time.process_time() - began < MOST_SECONDS, f"{name}: {text[:2000]!r}"
                if number % HTTP_SHARE == 0:
                    if name not in servers:
                        scripted = ScriptedLLM(llm)
                        servers[name] = stack.enter_context(serving(scripted, tool_call_parser=name)), scripted
                    send(*servers[name], text, rng)
                    counts["over HTTP"] += 1
            except BaseException as error:
                error.add_note(f"seed {seed}, case {number}")
                raise
            bar.update()
    return counts


def _told_of_tools(folder: Path) -> Path:
    path = make_tiny_checkpoint(folder / "model")
    (path / "chat_template.jinja").write_text(QWEN)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 4096
    (path / "config.json").write_text(json.dumps(config))
    return path


def main() -> int:
    """Run it and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="how many (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default 0)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = run(Path(folder), args.seed, args.cases, show=True)
    print("\n".join(f"{kind:24}{count:>6}" for kind, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

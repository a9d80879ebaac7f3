"""`python -m tests.clients [NAME ...]`: each client holds a conversation of three turns with an image, with the demo
model behind `corellm serve`, whole and streamed; then those that can have outputs of a type and calls of tools, of a
model of random weights. Prints a table; the exit status is 1 if any of them failed.

A conversation passes if each turn's text is the one that plain HTTP gets for the same messages, a task if what the
client made is of its type. Client libraries change, so this installs their newest versions and is no part of `make
test`, which has recorded bodies of theirs.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from corellm_llava.tiny import make_tiny_checkpoint
from extensions.server.tests.command import command
from tests.clients.environments import CACHE, CLIENTS, Client
from tests.templates.published import QWEN

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "demo" / "images" / "circles.png"
QUESTIONS = ("How many shapes are there?", "What colour are they?", "How many shapes are there?")
MODEL = "tiny"
_SECONDS = 600
"""That a client may take."""


def reference(http: httpx.Client, *, text_first: bool) -> list[str]:
    """The output of each turn, by plain HTTP."""
    url = "data:image/png;base64," + base64.b64encode(IMAGE.read_bytes()).decode()
    messages: list[dict[str, Any]] = []
    for i, question in enumerate(QUESTIONS):
        text = [{"type": "text", "text": question}]
        image = [] if i else [{"type": "image_url", "image_url": {"url": url}}]
        messages.append({"role": "user", "content": [*text, *image] if text_first else [*image, *text]})
        body = {"model": MODEL, "messages": messages, "temperature": 0}
        response = http.post("/v1/chat/completions", json=body).raise_for_status()
        messages.append({"role": "assistant", "content": response.json()["choices"][0]["message"]["content"]})
    return [message["content"].strip() for message in messages[1::2]]


def printed(client: Client, cache: Path, arguments: list[str]) -> Any:
    """What a client's script printed in its last line.

    Raises:
        RuntimeError: it failed, or could not be installed.
    """
    try:
        client.install(cache)
        ran = subprocess.run(
            client.command(cache, arguments), cwd=client.folder(cache), capture_output=True, text=True,
            timeout=_SECONDS,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        raise RuntimeError(str(error)) from error
    if ran.returncode:
        raise RuntimeError(f"{(ran.stderr.strip() or ran.stdout.strip()).splitlines()[-1]:.300}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def result(client: Client, cache: Path, url: str, want: list[str]) -> str:
    """How it went with a client: what it had in common with plain HTTP or did, or why it failed."""
    questions = QUESTIONS if client.kind == "conversations" else ()
    try:
        got = printed(client, cache, [url, MODEL, str(IMAGE), *questions])
    except RuntimeError as error:
        return f"failed: {error}"
    if client.kind == "conversations":
        wrong = {way: texts for way, texts in got.items() if [text.strip() for text in texts] != want}
        if wrong or not got:
            return f"failed: {wrong} is not {want}"
    return " and ".join(got) + (f" (not tried: {client.lacks})" if client.lacks else "")


def told_of_tools(path: Path) -> Path:
    """Write a tiny checkpoint whose chat template is Qwen's, for long conversations."""
    make_tiny_checkpoint(path)
    (path / "chat_template.jinja").write_text(QWEN)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 16384
    (path / "config.json").write_text(json.dumps(config))
    return path


def main() -> int:
    """Run what was asked for; 1 if a client failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(CLIENTS)} (default: all)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for environments (default {CACHE})")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(CLIENTS)):
        parser.error(f"no client {', '.join(unknown)}; there are {', '.join(CLIENTS)}")
    failed = 0
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folders = [Path(name, kind) for kind in ("demo", "random")]
        for folder in folders:
            folder.mkdir()
        model = told_of_tools(folders[1] / "model")
        servers = [
            stack.enter_context(command(Path("demo"), folders[0])),
            # random weights would begin to think, and never end
            stack.enter_context(command(model, folders[1], reasoning_parser="none")),
        ]
        of_demo, of_random = (str(server.http.base_url).rstrip("/") for server in servers)
        wants = [reference(servers[0].http, text_first=text_first) for text_first in (False, True)]
        print(f"{'plain HTTP':24}{', '.join(wants[0])}", flush=True)
        for name in args.names or CLIENTS:
            client = CLIENTS[name]
            url = of_demo if client.is_of_demo else of_random
            found = result(client, args.cache.resolve(), url, wants[client.text_first])
            failed |= found.startswith("failed")
            print(f"{name:24}{found}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

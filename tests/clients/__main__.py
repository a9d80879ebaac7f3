"""`python -m tests.clients [NAME ...]`: each client holds a conversation of three turns with an image, with the demo
model behind `corellm serve`, whole and streamed. Prints a table; the exit status is 1 if any of them failed.

A client passes if each turn's text is the one that plain HTTP gets for the same messages. Client libraries change, so
this installs their newest versions and is no part of `make test`, which has recorded bodies of theirs.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from extensions.server.tests.command import command
from tests.clients.environments import CACHE, CLIENTS, Client

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


def result(client: Client, cache: Path, url: str, want: list[str]) -> str:
    """How a client's conversation went: what it had in common with plain HTTP, or why it failed."""
    try:
        client.install(cache)
        ran = subprocess.run(
            client.command(cache, [url, MODEL, str(IMAGE), *QUESTIONS]),
            cwd=client.folder(cache), capture_output=True, text=True, timeout=_SECONDS,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError, RuntimeError) as error:
        return f"failed: {error}"
    if ran.returncode:
        return f"failed: {(ran.stderr.strip() or ran.stdout.strip()).splitlines()[-1]:.300}"
    got: dict[str, list[str]] = json.loads(ran.stdout.strip().splitlines()[-1])
    wrong = {way: texts for way, texts in got.items() if [text.strip() for text in texts] != want}
    if wrong or not got:
        return f"failed: {wrong} is not {want}"
    return " and ".join(got) + (f" (not tried: {client.lacks})" if client.lacks else "")


def main() -> int:
    """Run what was asked for; 1 if a client failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(CLIENTS)} (default: all)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for environments (default {CACHE})")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(CLIENTS)):
        parser.error(f"no client {', '.join(unknown)}; there are {', '.join(CLIENTS)}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder, command(Path("demo"), Path(folder)) as running:
        url = str(running.http.base_url).rstrip("/")
        wants = [reference(running.http, text_first=text_first) for text_first in (False, True)]
        print(f"{'plain HTTP':24}{', '.join(wants[0])}", flush=True)
        for name in args.names or CLIENTS:
            client = CLIENTS[name]
            found = result(client, args.cache.resolve(), url, wants[client.text_first])
            failed |= found.startswith("failed")
            print(f"{name:24}{found}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

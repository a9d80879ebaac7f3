"""Batch files, and a run over them in this process."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from corellm_server.batch.input_file import InputFile
from corellm_server.batch.output_file import OutputFile
from corellm_server.batch.progress import Progress
from corellm_server.batch.resuming import compare
from corellm_server.batch.running import BatchRun
from corellm_server.limits import RequestLimits
from corellm_server.options import ServerConfig, ServerOptions
from corellm_server.service import Service
from extensions.server.tests.conftest import MODEL

CHAT = "/v1/chat/completions"


def line(custom_id: Any, body: Any, url: str = CHAT, **changed: Any) -> str:
    """A line of a batch file."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **changed})


def written(path: Path, lines: Iterable[str]) -> Path:
    """A file of these lines."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def results(path: Path) -> list[dict[str, Any]]:
    """What a batch has written; the last line is whole, too."""
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


class Batch:
    """A run in this process over files of a folder.

    Args:
        client: of the engine.
        folder: has `requests.jsonl`; gets `results.jsonl`.
        options: of both classes.
    """

    def __init__(self, client: Any, folder: Path, **options: Any) -> None:
        limits = {name: options.pop(name) for name in [f.name for f in fields(RequestLimits)] if name in options}
        chosen = ServerOptions(**{"served_model_name": MODEL, "max_queue": 32, **options})
        self.service = Service(client, MODEL, ServerConfig(options=chosen, limits=RequestLimits(**limits)))
        self.input, self.output = folder / "requests.jsonl", folder / "results.jsonl"

    def run(self) -> Progress:
        """Do what has no result yet."""
        limit = self.service.config.limits.max_body_bytes
        with InputFile(self.input, limit) as requests, OutputFile(self.output) as output:
            progress = compare(requests, output)
            self.ended = asyncio.run(self._run(requests, output, progress))
        return progress

    async def _run(self, requests: InputFile, output: OutputFile, progress: Progress) -> signal.Signals | None:
        try:
            return await BatchRun(self.service, requests, output, progress).run()
        finally:
            await self.service.close()

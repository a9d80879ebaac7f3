"""One worker of a batch: an engine, and the server's application before it. Knows requests as rows; knows no files."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy

from corellm_server.options import ServerConfig


class Worker:
    """Does the requests of the blocks that Ray Data gives it.

    Args:
        config: of the server.
        engine_args: of the engine.
    """

    def __init__(self, config: ServerConfig, engine_args: dict[str, Any]) -> None:
        from corellm.serving import ProcessLLM
        from corellm_server.app import make_app
        from corellm_server.batch.running import batch_options
        from corellm_server.fetching.fetcher import Fetcher
        from corellm_server.service import Service

        self._runner = asyncio.Runner()
        self._llm = ProcessLLM(**engine_args)
        fetcher = Fetcher(config.fetching) if config.fetching.allowed_media_domains else None
        config = replace(config, options=batch_options(config.options, self._llm.max_num_seqs), offered=())
        self._at_once = config.options.max_queue
        self._app = make_app(Service(self._llm, engine_args["model"], config, fetcher))

    def __call__(self, batch: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        """The results of rows with what a `BatchRequest` has.

        Raises:
            EngineDeadError: the engine stopped.
        """
        return self._runner.run(self._finish(batch))

    async def _finish(self, batch: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        from corellm_server.batch.input_file import BatchRequest
        from corellm_server.batch.results import Finished
        from corellm_server.batch.running import finish

        room = asyncio.Semaphore(self._at_once)

        async def one(row: tuple[Any, ...]) -> Finished:
            line, custom_id, url, body, wrong = row
            request = BatchRequest(int(line), _text(custom_id), str(url), bytes(body), _text(wrong))
            async with room:
                return await finish(self._app, self._llm, request)

        columns = (batch[name] for name in ("line", "custom_id", "url", "body", "wrong"))
        rows = zip(*columns, strict=True)
        finished = await asyncio.gather(*(one(row) for row in rows))
        return {
            "result": numpy.array([one.line for one in finished], dtype=object),
            "failure": numpy.array([one.failure or "" for one in finished], dtype=object),
            "told": numpy.array([one.told or "" for one in finished], dtype=object),
            "prompt_tokens": numpy.array([one.num_prompt_tokens for one in finished]),
            "output_tokens": numpy.array([one.num_output_tokens for one in finished]),
        }


def _text(value: Any) -> str | None:
    """Return a value of a column of text; None where there is none, however numpy has it."""
    return str(value) if isinstance(value, str) else None

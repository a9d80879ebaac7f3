"""Sends one request to an OpenAI-compatible server, and notes when each part of its output comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import httpx

from corellm.errors import ConfigError
from corellm_server.loadgen.result import RequestResult
from corellm_server.loadgen.settings import LoadSettings

_MAX_MESSAGE = 300


class Client:
    """Connections to one server; a context manager.

    Args:
        settings: where it is, and how long it may take.
        clock: seconds since the start of the measurement.
    """

    def __init__(self, settings: LoadSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {},
            timeout=None,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # a proxy would be measured, too
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._http.__aexit__(*details)

    async def find_model(self) -> str:
        """The name of the model to measure: the wanted one, or the server's first.

        Raises:
            ConfigError: no server there, it refuses the key, or does not have the model.
        """
        url, wanted = self._settings.base_url, self._settings.model
        try:
            response = await self._http.get(f"{url}/models", timeout=10)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"no server at {url}: {error or type(error).__name__}; is it started, and is the port right? (--url)"
            ) from error
        if response.status_code in (401, 403):
            told = "refuses the key given by" if self._settings.api_key else "wants a key; give it by"
            raise ConfigError(f"the server at {url} {told} --api-key")
        names = _model_names(response)
        if not names and wanted is None:
            raise ConfigError(f"{url}/models (status {response.status_code}) lists no model; name one by --model, or "
                              "correct --url")  # fmt: skip
        if names and wanted is not None and wanted not in names:
            raise ConfigError(f"the server has no model {wanted!r}; it has {', '.join(names[:10])}")
        return wanted or names[0]

    async def send(self, result: RequestResult, body: bytes) -> RequestResult:
        """Stream the output of one request; a failure is part of the result."""
        result.sent = self._clock()
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._stream(result, body)
        except TimeoutError:
            result.error = "timeout"
        except httpx.HTTPError as error:
            result.error, result.message = "connection", str(error) or type(error).__name__
        result.ended = self._clock()
        result.output_tokens = result.output_tokens or len(result.chunks)
        return result

    async def _stream(self, result: RequestResult, body: bytes) -> None:
        url = f"{self._settings.base_url}/chat/completions"
        headers = {"Content-Type": "application/json"}
        async with self._http.stream("POST", url, content=body, headers=headers) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                result.error, result.message = f"HTTP {response.status_code}", _said(text)
                return
            has_finished = False
            async for event in _events(response):
                if event == b"[DONE]":
                    return
                try:
                    has_finished |= self._note(result, json.loads(event))
                except (ValueError, TypeError, AttributeError, KeyError):
                    result.error, result.message = "malformed stream", _said(event.decode(errors="replace"))
                if result.error:
                    return
            if not has_finished:
                result.error = "stream broke off"

    def _note(self, result: RequestResult, event: dict[str, Any]) -> bool:
        """Note what a part holds; whether it is the last with text."""
        if error := event.get("error"):
            result.error, result.message = "error in stream", _said(json.dumps(error))
        if usage := event.get("usage"):
            result.prompt_tokens, result.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        choices = event.get("choices") or [{}]
        delta = choices[0].get("delta") or {}
        if any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls")):
            result.chunks.append(self._clock())
        return choices[0].get("finish_reason") is not None


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of server-sent events; only line feeds end lines, as JSON may hold other line separators."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()


def _model_names(response: httpx.Response) -> list[str]:
    try:
        return [str(model["id"]) for model in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return []


def _said(text: str) -> str:
    """The message of an error's JSON, or its text, shortened."""
    try:
        error = json.loads(text)
        text = str(error.get("error", error).get("message", text))
    except (ValueError, AttributeError):
        pass  # not JSON of that form: shown as it is
    return " ".join(text.split())[:_MAX_MESSAGE]

"""What a reading found, as OpenAI's API has it: an object, a text, a file of subtitles, or events.

Knows formats; knows nothing of how audio is read.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import ceil
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse, Response

from corellm_server.endpoints.replies import json_response
from corellm_server.requests.audio import TranscriptionRequest
from corellm_server.responses.events import EventStream
from corellm_server.responses.usage import Usage
from corellm_server.speech.readings import RunReading

if TYPE_CHECKING:  # needs corellm-speech
    from corellm_speech.segments import Segment, Transcript


class ReadingReply:
    """Makes the response to one request.

    Args:
        body: of the request.
        run: its reading.
    """

    def __init__(self, body: TranscriptionRequest, run: RunReading) -> None:
        self._body, self._run, self._usage = body, run, Usage()

    async def response(self) -> Response:
        """The response; with `stream` once its first event is there.

        Raises:
            ApiError, CorellmError: a piece failed.
        """
        if self._body.stream:
            return await EventStream.of(self._events())
        async with aclosing(self._texts()) as texts:
            async for _ in texts:
                pass
        found = self._run.reading.transcript()
        match self._body.response_format:
            case "json":
                return json_response({"text": found.text, "usage": self._usage.reported_with_audio()})
            case "verbose_json":
                return json_response(self._verbose(found))
            case "text":
                return PlainTextResponse(found.text)
        from corellm_speech import srt, vtt

        return PlainTextResponse((srt if self._body.response_format == "srt" else vtt)(found.segments))

    async def _texts(self) -> AsyncGenerator[str, None]:
        """The text of each piece."""
        async with aclosing(self._run.outputs()) as outputs:
            async for text, output in outputs:
                self._usage.add_prompt(output)
                self._usage.add_outputs(output.outputs)
                yield text

    async def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        """The text piece by piece, and the whole at the end."""
        async with aclosing(self._texts()) as texts:
            async for text in texts:
                if text:
                    yield {"type": "transcript.text.delta", "delta": text}
        whole = self._run.reading.transcript().text
        yield {"type": "transcript.text.done", "text": whole, "usage": self._usage.reported_with_audio()}

    def _verbose(self, found: Transcript) -> dict[str, Any]:
        """As OpenAI's `TranscriptionVerbose`, or `TranslationVerbose`."""
        seconds, wanted = found.seconds or 0.0, self._body.timestamp_granularities or ["segment"]
        words = [{"word": one.text.strip(), "start": one.start, "end": one.end} for one in found.words]
        segments = [self._segment(number, one) for number, one in enumerate(found.segments)]
        return {
            "task": "translate" if self._body.TRANSLATES else "transcribe",
            "language": "english" if self._body.TRANSLATES else found.language,
            "duration": seconds,
            "text": found.text,
            **({"segments": segments} if "segment" in wanted else {}),
            **({"words": words} if "word" in wanted else {}),
            "usage": {"type": "duration", "seconds": ceil(seconds)},
        }

    def _segment(self, number: int, found: Segment) -> dict[str, Any]:
        """As OpenAI's `TranscriptionSegment`."""
        content = found.text.encode()
        return {
            "id": number,
            "seek": round(100 * found.window),
            "start": found.start,
            "end": found.end,
            "text": found.text,
            "tokens": found.token_ids,
            "temperature": found.temperature,
            "avg_logprob": found.mean_logprob,
            "compression_ratio": len(content) / len(zlib.compress(content)),
            "no_speech_prob": found.no_speech_prob,
        }

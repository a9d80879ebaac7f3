"""The text of audio: whole, or as events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corellm.outputs import CompletionOutput, RequestOutput
from corellm_server.responses.usage import Usage, finish_reason


class TranscriptionResponse:
    """Makes the response to one request."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._texts: list[str] = []

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response to a finished request, as OpenAI's `Transcription`."""
        self._take(output.outputs[0])
        return self._finished(output)

    def events(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The events for what is new, as OpenAI's `TranscriptionStreamEvent`."""
        completion = output.outputs[0]
        self._take(completion)
        yield {"type": "transcript.text.delta", "delta": completion.text}
        if output.finished:
            yield {"type": "transcript.text.done", **self._finished(output)}

    def _take(self, completion: CompletionOutput) -> None:
        finish_reason(completion)  # raises if it was aborted
        self._texts.append(completion.text)
        self.usage.add_outputs([completion])

    def _finished(self, output: RequestOutput) -> dict[str, Any]:
        self.usage.add_prompt(output)
        return {"text": "".join(self._texts), "usage": self.usage.reported_with_audio()}

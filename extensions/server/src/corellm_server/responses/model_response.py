"""A model response, OpenAI's newer form of a completion: whole, or as events that end with the whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from corellm.outputs import CompletionOutput, RequestOutput
from corellm_server.errors import ApiError
from corellm_server.responses.logprobs import text_logprobs
from corellm_server.responses.usage import Usage, finish_reason

_FIXED: Mapping[str, Any] = {
    "background": False, "max_tool_calls": None, "parallel_tool_calls": True, "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "store": False,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
}  # fmt: skip
"""What a response says of fields that have no effect."""


class ModelResponse:
    """Makes the response to one request: one message, of one text.

    Args:
        settings: the request's fields that the response repeats.
        num_top: how many most likely tokens to report; None for no log-probabilities.
    """

    def __init__(self, settings: Mapping[str, Any], num_top: int | None) -> None:
        self.usage = Usage()
        self._id, self._item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._settings, self._num_top = settings, num_top
        self._created = int(time.time())
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._num_events = 0

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response to a finished request, as OpenAI's `Response`."""
        self.usage.add_prompt(output)
        self._take(output.outputs[0])
        return self._finished(_status(output.outputs[0]))

    def events(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The events for what is new, as OpenAI's `ResponseStreamEvent`."""
        if not self._num_events:
            self.usage.add_prompt(output)
            yield from self._beginning()
        completion = output.outputs[0]
        logprobs = self._take(completion)
        if completion.text or logprobs:
            yield self._event("output_text.delta", **self._place, delta=completion.text, logprobs=logprobs)
        if completion.finished:
            yield from self._end(_status(completion))

    def failure(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """The events that end a stream which failed."""
        detail = error.body()["error"]
        fields = {name: detail[name] for name in ("code", "message", "param")}  # OpenAI's own clients read `error`
        yield {**fields, "type": "error", "sequence_number": self._num_events, "error": detail}
        self._num_events += 1
        failed = self._response("failed", [self._item("incomplete")])
        yield self._event(
            "failed", response={**failed, "error": {"code": "server_error", "message": detail["message"]}}
        )

    def _beginning(self) -> Iterator[dict[str, Any]]:
        yield self._event("created", response=self._response("in_progress", []))
        yield self._event("in_progress", response=self._response("in_progress", []))
        item = {**self._item("in_progress"), "content": []}
        yield self._event("output_item.added", output_index=0, item=item)
        yield self._event("content_part.added", **self._place, part=self._part())

    def _end(self, status: str) -> Iterator[dict[str, Any]]:
        yield self._event("output_text.done", **self._place, text=self._text, logprobs=self._logprobs)
        yield self._event("content_part.done", **self._place, part=self._part())
        yield self._event("output_item.done", output_index=0, item=self._item(status))
        yield self._event(status, response=self._finished(status))

    def _take(self, completion: CompletionOutput) -> list[dict[str, Any]]:
        """Add what is new; return its log-probabilities."""
        new = [] if self._num_top is None else text_logprobs(completion, self._num_top)
        self._texts.append(completion.text)
        self._logprobs += new
        self.usage.add_outputs([completion])
        return new

    def _finished(self, status: str) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._response(status, [self._item(status)]),
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": reason,
            "usage": self.usage.reported_as_input(),
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            **_FIXED, **self._settings, "id": self._id, "object": "response", "created_at": self._created,
            "completed_at": None, "status": status, "error": None, "incomplete_details": None, "output": output,
            "usage": None,
        }  # fmt: skip

    def _item(self, status: str) -> dict[str, Any]:
        return {
            "id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": [self._part()],
        }  # fmt: skip

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._logprobs}

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        event = {"type": f"response.{kind}", "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event


def _status(completion: CompletionOutput) -> str:
    """Whether a finished completion ended by itself: `completed`, or `incomplete`.

    Raises:
        ApiError: it was aborted.
    """
    return "completed" if finish_reason(completion) == "stop" else "incomplete"

"""A model response, OpenAI's newer form of a completion: whole, or as events that end with the whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from corellm.outputs import CompletionOutput, RequestOutput
from corellm_server.errors import ApiError
from corellm_server.output_forms import OutputForm
from corellm_server.parsing.pieces import Piece, Text
from corellm_server.responses.logprobs import TextLogprobs, text_logprobs
from corellm_server.responses.message import GrowingMessage
from corellm_server.responses.output_items import Event, OutputItem, item_of, text_of
from corellm_server.responses.usage import Usage, finish_reason

_FIXED: Mapping[str, Any] = {
    "background": False, "max_tool_calls": None, "previous_response_id": None, "service_tier": "default",
    "store": False,
}  # fmt: skip
"""What a response says of fields that have no effect."""


class ModelResponse:
    """Makes the response to one request: messages, reasoning and calls, as the model wrote them.

    Args:
        settings: the request's fields that the response repeats.
        num_top: how many most likely tokens to report; None for no log-probabilities.
        form: how the output is read.
        one_call: whether it has one call at most.
    """

    def __init__(
        self, settings: Mapping[str, Any], num_top: int | None, form: OutputForm, *, one_call: bool = False
    ) -> None:
        self.usage = Usage()
        self.id = f"resp_{uuid.uuid4().hex}"
        self.is_begun = False
        """Whether the engine has returned anything."""
        self._settings, self._num_top = settings, num_top
        self._created = int(time.time())
        self._said = GrowingMessage(form, one_call=one_call)
        self._is_parsed = form.parser() is not None
        self._items: list[OutputItem] = []
        self._logprobs = TextLogprobs()
        self._num_events = 0

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response to a finished request, as OpenAI's `Response`."""
        self.usage.add_prompt(output)
        completion = output.outputs[0]
        for _ in self._take(completion):
            pass
        for _ in self._with_an_item():
            pass
        return self._finished(_status(completion))

    def events(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The events for what is new, as OpenAI's `ResponseStreamEvent`."""
        if not self.is_begun:
            self.is_begun = True
            self.usage.add_prompt(output)
            if not self._num_events:
                yield self._event("created", response=self._response("in_progress", []))
            yield self._event("in_progress", response=self._response("in_progress", []))
            if not self._is_parsed:
                yield from self._numbered(self._with_an_item())
        completion = output.outputs[0]
        yield from self._numbered(self._take(completion))
        if completion.finished:
            status = _status(completion)
            yield from self._numbered(self._with_an_item())
            yield from self._numbered(self._items[-1].end(status))
            yield self._event(status, response=self._finished(status))

    def queued(self) -> Iterator[dict[str, Any]]:
        """The events that begin a stream before there is any output."""
        yield self._event("created", response=self.now("queued"))
        yield self._event("queued", response=self.now("queued"))

    def now(self, status: str) -> dict[str, Any]:
        """The response as far as it is, with the status of all of it."""
        is_over = status == "cancelled"
        return self._response(status, self._output("incomplete" if is_over else "in_progress") if self._items else [])

    def cancellation(self) -> Iterator[dict[str, Any]]:
        """The event that ends a stream which was cancelled: there is none of this name."""
        yield self._event("failed", response=self.now("cancelled"))

    def failure(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """The events that end a stream which failed."""
        detail = error.body()["error"]
        fields = {name: detail[name] for name in ("code", "message", "param")}  # OpenAI's own clients read `error`
        yield {**fields, "type": "error", "sequence_number": self._num_events, "error": detail}
        self._num_events += 1
        failed = self._response("failed", self._output("incomplete"))
        yield self._event(
            "failed", response={**failed, "error": {"code": "server_error", "message": detail["message"]}}
        )

    def _take(self, completion: CompletionOutput) -> Iterator[Event]:
        """Add what is new of the completion."""
        if self._num_top is not None:
            self._logprobs.add(text_logprobs(completion, self._num_top))
        pieces = self._said.read(completion)
        if self._num_top is None:
            for piece in self._said.add(pieces):
                yield from self._add(piece, [])
        else:
            yield from self._take_with_logprobs(pieces, is_last=completion.finished)
        self.usage.add_outputs([completion])
        self.usage.num_reasoning_tokens = self._said.num_reasoning_tokens

    def _take_with_logprobs(self, pieces: Sequence[Piece], *, is_last: bool) -> Iterator[Event]:
        """Add pieces of the completion, texts with the log-probabilities of their tokens."""
        for piece in pieces:
            is_text = isinstance(piece, Text)
            logprobs = self._logprobs.of(piece.source, is_wanted=is_text) if self._is_parsed else self._logprobs.left()
            reported = self._said.add([piece])
            for one in reported or ([Text("")] if logprobs else []):  # a token without text has one, too
                yield from self._add(one, logprobs)
        if is_last and self._items and self._items[-1].takes(Text("")):
            yield from self._add(Text(""), self._logprobs.left())

    def _add(self, piece: Piece, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        if not self._items or not self._items[-1].takes(piece):
            if self._items:
                yield from self._items[-1].end("completed")
            self._items.append(item_of(piece, len(self._items)))
            yield from self._items[-1].beginning()
        if text_of(piece) or logprobs:
            yield self._items[-1].add(text_of(piece), logprobs)

    def _with_an_item(self) -> Iterator[Event]:
        """Begin a message, if there is no item: no output is without one."""
        if not self._items:
            self._items.append(OutputItem(0))
            yield from self._items[-1].beginning()

    def _numbered(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        for kind, fields in events:
            yield self._event(kind, **fields)

    def _output(self, status: str) -> list[dict[str, Any]]:
        """All items; the last one may not be complete."""
        *earlier, last = self._items or [OutputItem(0)]
        return [*(item.whole("completed") for item in earlier), last.whole(status)]

    def _finished(self, status: str) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._response(status, self._output(status)),
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": reason,
            "usage": self.usage.reported_as_input(),
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            **_FIXED, **self._settings, "id": self.id, "object": "response", "created_at": self._created,
            "completed_at": None, "status": status, "error": None, "incomplete_details": None, "output": output,
            "usage": None,
        }  # fmt: skip

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

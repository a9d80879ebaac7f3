"""A message, Anthropic's form of a completion: whole, or as events."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from corellm.outputs import CompletionOutput, RequestOutput
from corellm_server.output_forms import OutputForm
from corellm_server.parsing.pieces import Piece, Text
from corellm_server.responses.content_blocks import ContentBlock, block_of, text_block
from corellm_server.responses.message import GrowingMessage
from corellm_server.responses.usage import Usage, finish_reason

Event = dict[str, Any]


class MessageResponse:
    """Makes the response to one request: one message, of blocks as the model wrote them.

    Args:
        model: the name that the client asked for.
        max_tokens: that the client asked for; the model may have room for fewer.
        form: how the output is read.
        tells_cached: whether tokens of the prompt that were found in the cache are told apart.
        shows_thinking: whether what the model thought is reported.
        one_call: whether there is one call at most.
    """

    def __init__(
        self,
        model: str,
        max_tokens: int,
        form: OutputForm,
        *,
        tells_cached: bool,
        shows_thinking: bool = True,
        one_call: bool = False,
    ) -> None:
        self.usage = Usage()
        self._head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model}
        self._max_tokens, self._tells_cached = max_tokens, tells_cached
        self._said = GrowingMessage(form, shows_reasoning=shows_thinking, one_call=one_call)
        self._is_parsed = form.parser() is not None
        self._blocks: list[ContentBlock] = []
        self._is_begun = False

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response to a finished request, as Anthropic's `Message`."""
        (completion,) = output.outputs
        self.usage.add_prompt(output)
        for _ in self._take(completion):
            pass
        return self._message(self._content() or [text_block("")], self._ending(completion))

    def events(self, output: RequestOutput) -> Iterator[Event]:
        """The events for what is new, as Anthropic's `RawMessageStreamEvent`."""
        (completion,) = output.outputs
        if not self._is_begun:
            self._is_begun = True
            self.usage.add_prompt(output)
            yield {"type": "message_start", "message": self._message([], {"stop_reason": None, "stop_sequence": None})}
            if not self._is_parsed:
                yield from self._begin(Text(""))
            yield {"type": "ping"}
        yield from self._take(completion)
        if completion.finished:
            if not self._blocks:  # no message is without one
                yield from self._begin(Text(""))
            ending = self._ending(completion)
            yield from self._end()
            yield {"type": "message_delta", "delta": ending, "usage": self._usage()}
            yield {"type": "message_stop"}

    def _take(self, completion: CompletionOutput) -> Iterator[Event]:
        """Add what is new of the completion."""
        pieces = self._said.take(completion)
        self.usage.add_outputs([completion])
        for piece in pieces:
            if not self._blocks or not self._blocks[-1].takes(piece):
                yield from self._begin(piece)
            if (delta := self._blocks[-1].add(piece)) is not None:
                yield {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _begin(self, piece: Piece) -> Iterator[Event]:
        """Begin the block of a piece, after the end of the one before."""
        yield from self._end()
        self._blocks.append(block_of(piece))
        begun = self._blocks[-1].begun()
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": begun}

    def _end(self) -> Iterator[Event]:
        if self._blocks:
            yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _content(self) -> list[dict[str, Any]]:
        """All blocks as they are; neighbours of text are one."""
        content: list[dict[str, Any]] = []
        for made in (block.whole() for block in self._blocks):
            if content and made["type"] == content[-1]["type"] == "text":
                content[-1]["text"] += made["text"]
            else:
                content.append(made)
        return content

    def _message(self, content: list[dict[str, Any]], ending: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "content": content, **ending, "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        return self.usage.reported_with_cache(tells_cached=self._tells_cached)

    def _ending(self, completion: CompletionOutput) -> dict[str, Any]:
        """Why a finished completion ended.

        Raises:
            ApiError: it was aborted.
        """
        reason, found = "end_turn", None
        if finish_reason(completion) == "length":
            is_full = self.usage.num_output_tokens < self._max_tokens
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif isinstance(completion.stop_reason, str):
            reason, found = "stop_sequence", completion.stop_reason
        elif any(made["type"] == "tool_use" for made in self._content()):
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": found}

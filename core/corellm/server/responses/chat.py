"""A conversation's completion: whole, or as chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from corellm.outputs import CompletionOutput, RequestOutput
from corellm.server.responses.logprobs import chat_logprobs
from corellm.server.responses.usage import Usage, finish_reason


class ChatResponse:
    """Makes the response to one request.

    Args:
        response_id: for the client.
        model: the name that the client asked for.
        num_top: how many most likely tokens to report; None for no log-probabilities.
        include_usage: whether a stream ends with the numbers of tokens.
    """

    def __init__(self, response_id: str, model: str, num_top: int | None, *, include_usage: bool = False) -> None:
        self.usage = Usage()
        self._id, self._model, self._created = response_id, model, int(time.time())
        self._num_top, self._include_usage = num_top, include_usage
        self._open: set[int] | None = None
        """Completions that still grow, once there was an output."""

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response to a finished request, as OpenAI's `ChatCompletion`."""
        self.usage.add_prompt(len(output.prompt_token_ids), output.num_cached_tokens)
        self.usage.add_outputs(output.outputs)
        choices = [
            self._choice(one, {"message": {"role": "assistant", "content": one.text, "refusal": None}})
            for one in output.outputs
        ]
        return {**self._response("chat.completion", choices), "usage": self.usage.reported()}

    def chunks(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The events for what is new: completions' roles first, then their text, each with its own index."""
        if self._open is None:
            self._open = {completion.index for completion in output.outputs}
            self.usage.add_prompt(len(output.prompt_token_ids), output.num_cached_tokens)
            for index in sorted(self._open):
                delta = {"role": "assistant", "content": "", "refusal": None}
                yield self._chunk([{"index": index, "delta": delta, "finish_reason": None, "logprobs": None}])
        for completion in output.outputs:
            if completion.index not in self._open:
                continue  # ended before
            if completion.finished:
                self._open.discard(completion.index)
            elif not completion.token_ids:
                continue
            self.usage.add_outputs([completion])
            yield self._chunk([self._choice(completion, {"delta": {"content": completion.text}})])

    def last_chunk(self) -> dict[str, Any]:
        """The event with the numbers of tokens."""
        return {**self._chunk([]), "usage": self.usage.reported()}

    def _choice(self, output: CompletionOutput, content: dict[str, Any]) -> dict[str, Any]:
        return {
            "index": output.index,
            **content,
            "finish_reason": finish_reason(output),
            "logprobs": None if self._num_top is None else chat_logprobs(output, self._num_top),
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An event, as OpenAI's `ChatCompletionChunk`."""
        chunk = self._response("chat.completion.chunk", choices)
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _response(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices,
        }  # fmt: skip

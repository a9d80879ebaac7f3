"""A conversation's completion: whole, or as events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from corellm.outputs import CompletionOutput, RequestOutput
from corellm_server.responses.logprobs import chat_logprobs, prompt_logprobs
from corellm_server.responses.usage import Usage, finish_reason


class ChatResponse:
    """Makes the response to one request.

    Args:
        response_id: for the client.
        model: the name that the client asked for.
        num_top: how many most likely tokens to report; None for no log-probabilities.
        usage: counts its tokens.
        with_token_ids: whether to report the token ids of prompt and outputs.
    """

    def __init__(
        self, response_id: str, model: str, num_top: int | None, *, usage: Usage, with_token_ids: bool = False
    ) -> None:
        self.usage = usage
        head: dict[str, Any] = {"id": response_id, "created": int(time.time()), "model": model}
        self._whole = {**head, "object": "chat.completion"}
        self._chunk = {**head, "object": "chat.completion.chunk"}
        self._num_top, self._with_token_ids = num_top, with_token_ids
        self._open: set[int] | None = None
        """Completions that still grow, once there was an output."""

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response to a finished request, as OpenAI's `ChatCompletion`."""
        self.usage.add_prompt(output)
        self.usage.add_outputs(output.outputs)
        choices = [
            self._choice(one, {"message": {"role": "assistant", "content": one.text, "refusal": None}})
            for one in output.outputs
        ]
        made = {**self._whole, **self._prompt_ids(output), "choices": choices, "usage": self.usage.reported()}
        if output.prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return made

    def events(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The events for what is new, as OpenAI's `ChatCompletionChunk`: completions' roles first, then their text."""
        if self._open is None:
            self._open = {completion.index for completion in output.outputs}
            self.usage.add_prompt(output)
            for index in sorted(self._open):
                delta = {"role": "assistant", "content": "", "refusal": None}
                choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
                yield {**self._chunk, **self.usage.in_event(), **self._prompt_ids(output), "choices": [choice]}
        for completion in output.outputs:
            if completion.index not in self._open:
                continue  # ended before
            if completion.finished:
                self._open.discard(completion.index)
            elif not completion.token_ids:
                continue
            self.usage.add_outputs([completion])
            choice = self._choice(completion, {"delta": {"content": completion.text}})
            yield {**self._chunk, **self.usage.in_event(), "choices": [choice]}
        if output.finished and self.usage.at_end:
            yield {**self._chunk, "choices": [], "usage": self.usage.reported()}

    def _prompt_ids(self, output: RequestOutput) -> dict[str, Any]:
        return {"prompt_token_ids": output.prompt_token_ids} if self._with_token_ids else {}

    def _choice(self, output: CompletionOutput, content: dict[str, Any]) -> dict[str, Any]:
        return {
            "index": output.index,
            **content,
            "finish_reason": finish_reason(output),
            "logprobs": None if self._num_top is None else chat_logprobs(output, self._num_top),
            **({"token_ids": output.token_ids} if self._with_token_ids else {}),
        }

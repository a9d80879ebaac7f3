"""A conversation's completion: whole, or as events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from corellm.outputs import CompletionOutput, RequestOutput
from corellm_server.output_forms import OutputForm
from corellm_server.parsing.pieces import CallArguments, CallStart, Piece, Reasoning
from corellm_server.responses.logprobs import chat_logprobs, prompt_logprobs
from corellm_server.responses.message import GrowingMessage
from corellm_server.responses.usage import Usage


class ChatResponse:
    """Makes the response to one request.

    Args:
        response_id: for the client.
        model: the name that the client asked for.
        num_top: how many most likely tokens to report; None for no log-probabilities.
        usage: counts its tokens.
        form: how its completions are read.
        with_token_ids: whether to report the token ids of prompt and outputs.
        shows_reasoning: whether to report what the model thought.
        one_call: whether a reply has one tool call at most.
        is_named: whether the request names the function to call: its call ends a reply with `stop`, as OpenAI's does.
    """

    def __init__(
        self,
        response_id: str,
        model: str,
        num_top: int | None,
        *,
        usage: Usage,
        form: OutputForm,
        with_token_ids: bool = False,
        shows_reasoning: bool = True,
        one_call: bool = False,
        is_named: bool = False,
    ) -> None:
        self.usage = usage
        head: dict[str, Any] = {"id": response_id, "created": int(time.time()), "model": model}
        self._whole = {**head, "object": "chat.completion"}
        self._chunk = {**head, "object": "chat.completion.chunk"}
        self._num_top, self._with_token_ids = num_top, with_token_ids
        self._is_named = is_named
        self._reasons = form.reasoning_parser is not None
        self._messages: defaultdict[int, GrowingMessage] = defaultdict(
            lambda: GrowingMessage(form, shows_reasoning=shows_reasoning, one_call=one_call)
        )
        self._is_parsed = form.parser() is not None
        self._open: set[int] | None = None
        """Completions that still grow, once there was an output."""

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response to a finished request, as OpenAI's `ChatCompletion`."""
        self.usage.add_prompt(output)
        choices = [self._choice(one, {"message": self._message(one)}) for one in output.outputs]
        made = {**self._whole, **self._prompt_ids(output), "choices": choices, "usage": self.usage.reported()}
        if output.prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return made

    def events(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The events for what is new, as OpenAI's `ChatCompletionChunk`: completions' roles first."""
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
            for choice in self._changes(completion):
                yield {**self._chunk, **self.usage.in_event(), "choices": [choice]}
        if output.finished and self.usage.at_end:
            yield {**self._chunk, "choices": [], "usage": self.usage.reported()}

    def _changes(self, completion: CompletionOutput) -> list[dict[str, Any]]:
        """The choices of the events for what is new of a completion: each has one kind of delta."""
        deltas = [_delta(piece) for piece in self._taken(completion)]
        if not self._is_parsed:
            deltas = [{"content": completion.text}]
        is_told = completion.finished or self._num_top is not None or self._with_token_ids
        if not deltas:
            return [self._choice(completion, {"delta": {}})] if is_told else []
        plain = {"index": completion.index, "finish_reason": None, "logprobs": None}
        first, *others = deltas
        choices = [self._choice(completion, {"delta": first}), *({**plain, "delta": delta} for delta in others)]
        choices[0]["finish_reason"], choices[-1]["finish_reason"] = None, choices[0]["finish_reason"]
        return choices

    def _taken(self, completion: CompletionOutput) -> list[Piece]:
        """Add what is new of a completion, and count it."""
        pieces = self._messages[completion.index].take(completion)
        self.usage.add_outputs([completion])
        if self._reasons:
            self.usage.num_reasoning_tokens = sum(one.num_reasoning_tokens for one in self._messages.values())
        return pieces

    def _message(self, completion: CompletionOutput) -> dict[str, Any]:
        self._taken(completion)
        said = self._messages[completion.index]
        calls = [_call(start, arguments) for start, arguments in said.calls]
        return {
            "role": "assistant",
            "content": said.text or (None if calls else ""),
            "refusal": None,
            **({"tool_calls": calls} if calls else {}),
            **(_reasoning(said.reasoning) if said.reasoning else {}),
        }

    def _prompt_ids(self, output: RequestOutput) -> dict[str, Any]:
        return {"prompt_token_ids": output.prompt_token_ids} if self._with_token_ids else {}

    def _choice(self, output: CompletionOutput, content: dict[str, Any]) -> dict[str, Any]:
        reason = self._messages[output.index].finish_reason(output)
        return {
            "index": output.index,
            **content,
            "finish_reason": "stop" if self._is_named and reason == "tool_calls" else reason,
            "logprobs": None if self._num_top is None else chat_logprobs(output, self._num_top),
            **({"token_ids": output.token_ids} if self._with_token_ids else {}),
        }


def _delta(piece: Piece) -> dict[str, Any]:
    """A piece in an event."""
    if isinstance(piece, Reasoning):
        return _reasoning(piece.source)
    if isinstance(piece, CallStart):
        return {"tool_calls": [{"index": piece.index, **_call(piece, "")}]}
    if isinstance(piece, CallArguments):
        return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}
    return {"content": piece.source}


def _call(start: CallStart, arguments: str) -> dict[str, Any]:
    return {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": arguments}}


def _reasoning(text: str) -> dict[str, Any]:
    """Reasoning by the two names that clients read."""
    return {"reasoning": text, "reasoning_content": text}

"""Completions of prompts: whole, or as events. Several prompts have one response, whose choices are in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from corellm.outputs import CompletionOutput, RequestOutput
from corellm_server.responses.logprobs import TokenTable
from corellm_server.responses.usage import Usage, finish_reason


class CompletionResponse:
    """Makes the response to one request.

    Args:
        response_id: for the client.
        model: the name that the client asked for.
        num_prompts: of the request.
        n: completions of each prompt.
        num_top: how many most likely tokens to report; None for no log-probabilities.
        echoes: texts of the prompts, which go before their completions; None without `echo`.
        prompt_only: whether no token was asked for, so that the one that was generated is left out.
        usage: counts its tokens.
    """

    def __init__(
        self,
        response_id: str,
        model: str,
        num_prompts: int,
        n: int,
        num_top: int | None,
        *,
        echoes: Sequence[str] | None = None,
        prompt_only: bool = False,
        usage: Usage,
    ) -> None:
        self.usage = usage
        self._head: dict[str, Any] = {
            "id": response_id, "object": "text_completion", "created": int(time.time()), "model": model,
        }  # fmt: skip
        self._n, self._num_top, self._echoes = n, num_top, echoes
        self._prompt_only = prompt_only
        self._tables: dict[int, TokenTable] = {}
        """Tables of the tokens of choices that have begun, by index."""
        self._ended: set[int] = set()
        self._num_unfinished = num_prompts
        self._counted: set[int] = set()
        """Prompts whose tokens were counted."""

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The response to finished requests, one per prompt."""
        choices = [choice for index, output in enumerate(outputs) for choice in self._choices(index, output)]
        return {**self._head, "choices": choices, "usage": self.usage.reported()}

    def events(self, prompt: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The events for what is new of a prompt's completions, as OpenAI's `Completion`."""
        for choice in self._choices(prompt, output):
            yield {**self._head, **self.usage.in_event(), "choices": [choice]}
        self._num_unfinished -= output.finished
        if not self._num_unfinished and self.usage.at_end:
            yield {**self._head, "choices": [], "usage": self.usage.reported()}

    def _choices(self, prompt: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        if prompt not in self._counted:
            self._counted.add(prompt)
            self.usage.add_prompt(output)
        for completion in output.outputs:
            index = prompt * self._n + completion.index
            if index in self._ended or not (completion.finished or completion.token_ids):
                continue
            if completion.finished:
                self._ended.add(index)
            yield self._choice(index, prompt, output, completion)

    def _choice(self, index: int, prompt: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        echo = self._echoes[prompt] if self._echoes is not None and index not in self._tables else None
        table = self._tables.setdefault(index, TokenTable(self._num_top or 0))
        text, reason = completion.text, finish_reason(completion)
        if self._prompt_only:
            text, reason = "", reason and "length"
        else:
            self.usage.add_outputs([completion])
        logprobs = None
        if self._num_top is not None:
            logprobs = self._logprobs(table, output, completion, with_prompt=echo is not None)
        return {"index": index, "text": (echo or "") + text, "finish_reason": reason, "logprobs": logprobs}

    def _logprobs(
        self, table: TokenTable, output: RequestOutput, completion: CompletionOutput, *, with_prompt: bool
    ) -> dict[str, Any]:
        token_ids = [] if self._prompt_only else completion.token_ids
        positions = [] if self._prompt_only else list(completion.logprobs or ())
        if with_prompt:
            token_ids, positions = [*output.prompt_token_ids, *token_ids], [*(output.prompt_logprobs or ()), *positions]
        return table.take(token_ids, positions)

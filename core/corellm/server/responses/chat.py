"""A conversation's completion: whole, or as chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs

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

    def whole(self, output: RequestOutput) -> ChatCompletion:
        """The response to a finished request."""
        self.usage.add_prompt(len(output.prompt_token_ids), output.num_cached_tokens)
        self.usage.add_outputs(output.outputs)
        return ChatCompletion(
            id=self._id, object="chat.completion", created=self._created, model=self._model,
            choices=[self._choice(completion) for completion in output.outputs],
            usage=self.usage.reported(),
        )  # fmt: skip

    def _choice(self, output: CompletionOutput) -> Choice:
        logprobs = None if self._num_top is None else ChoiceLogprobs(content=chat_logprobs(output, self._num_top))
        return Choice(
            index=output.index,
            message=ChatCompletionMessage(role="assistant", content=output.text, refusal=None),
            finish_reason=finish_reason(output) or "stop",
            logprobs=logprobs,
        )

    def chunks(self, output: RequestOutput) -> Iterator[ChatCompletionChunk]:
        """The events for what is new: completions' roles first, then their text, each with its own index."""
        if self._open is None:
            self._open = {completion.index for completion in output.outputs}
            self.usage.add_prompt(len(output.prompt_token_ids), output.num_cached_tokens)
            for index in sorted(self._open):
                delta = ChoiceDelta(role="assistant", content="", refusal=None)
                yield self._chunk([ChunkChoice(index=index, delta=delta, finish_reason=None, logprobs=None)])
        for completion in output.outputs:
            if completion.index not in self._open:
                continue  # ended before
            if completion.finished:
                self._open.discard(completion.index)
            elif not completion.token_ids:
                continue
            self.usage.add_outputs([completion])
            yield self._chunk([self._delta(completion)])

    def _delta(self, output: CompletionOutput) -> ChunkChoice:
        logprobs = None
        if self._num_top is not None:
            logprobs = ChunkLogprobs(content=chat_logprobs(output, self._num_top))
        return ChunkChoice(
            index=output.index,
            delta=ChoiceDelta(content=output.text),
            finish_reason=finish_reason(output),
            logprobs=logprobs,
        )

    def last_chunk(self) -> ChatCompletionChunk:
        """The event with the numbers of tokens."""
        return self._chunk([], ended=True)

    def _chunk(self, choices: list[ChunkChoice], *, ended: bool = False) -> ChatCompletionChunk:
        chunk = ChatCompletionChunk(
            id=self._id, object="chat.completion.chunk", created=self._created, model=self._model, choices=choices
        )
        if self._include_usage:
            chunk.usage = self.usage.reported() if ended else None
        return chunk

"""How far a request is, so that another replica can go on with it.

Results are a request's own, bit for bit: another replica computes the same tokens, and what the reader has of them is
left out. Knows outputs; knows no replicas.
"""

from __future__ import annotations

from dataclasses import replace

from corellm.engine.process.messages import Delta
from corellm.errors import EngineLostError
from corellm.outputs import CompletionOutput


class Progress:
    """What a request's reader has, and what is new."""

    def __init__(self) -> None:
        self._told: list[CompletionOutput] = []
        self._again: dict[int, CompletionOutput] = {}
        """By completion: all that the reader has, until a replica that began again has computed more."""
        self._computed: dict[int, CompletionOutput] = {}

    def begin_again(self) -> None:
        """Take what comes as from the request's beginning."""
        self._again, self._computed = _joined(self._told), {}

    def news(self, delta: Delta) -> Delta | None:
        """What is new to the reader; None for nothing.

        Raises:
            EngineLostError: another replica computed something else than the reader has.
        """
        if self._again:
            delta.outputs = [new for output in delta.outputs if (new := self._beyond(output)) is not None]
        self._told += delta.outputs
        return delta if delta.outputs or delta.finished else None

    def _beyond(self, output: CompletionOutput) -> CompletionOutput | None:
        """What an output has that the reader has not."""
        told = self._again.get(output.index)
        if told is None:
            return output
        computed = self._computed.get(output.index)
        computed = self._computed[output.index] = output if computed is None else computed.followed_by(output)
        count = len(told.token_ids)
        if computed.token_ids[:count] != told.token_ids[: len(computed.token_ids)] or (
            computed.finished and len(computed.token_ids) < count
        ):
            raise EngineLostError("the engine that had the request ended, and another one computes something else")
        if len(computed.token_ids) <= count and not computed.finished:
            return None
        del self._again[output.index]
        logprobs = computed.logprobs and computed.logprobs[count:]
        text = computed.text[len(told.text) :]
        return replace(computed, text=text, token_ids=computed.token_ids[count:], logprobs=logprobs)


def _joined(outputs: list[CompletionOutput]) -> dict[int, CompletionOutput]:
    """All of each completion."""
    whole: dict[int, CompletionOutput] = {}
    for output in outputs:
        whole[output.index] = whole[output.index].followed_by(output) if output.index in whole else output
    return whole

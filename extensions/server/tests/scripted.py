"""An engine whose outputs are given, token by token; prompts are prepared by a real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from corellm import AsyncLLM, SamplingParams
from corellm.outputs import CompletionOutput, RequestOutput
from corellm.sampling_params import RequestOutputKind
from corellm.serving import ProcessedPrompt


class ScriptedLLM:
    """A client of an engine that writes what it is told.

    Args:
        llm: prepares prompts and answers everything else.
        cut: characters of a delta.
    """

    def __init__(self, llm: AsyncLLM, cut: int = 3) -> None:
        self._llm, self.cut = llm, cut
        self.cuts: list[int] | None = None
        """Where deltas end instead, but for the last one."""
        self.outputs: list[str] = []
        """What it writes next, a request's each."""
        self.reason: Any = "stop"
        self.prompts: list[ProcessedPrompt] = []
        self.params: list[SamplingParams] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def generate(self, prompt: ProcessedPrompt, params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        """The next output, as deltas or whole; a token is some characters."""
        self.prompts.append(prompt)
        self.params.append(params)
        text = self.outputs.pop(0)
        whole = params.output_kind is RequestOutputKind.FINAL_ONLY
        added = self._llm.input_processor.tokenizer.get_added_vocab()
        begins = [0, *(range(self.cut, len(text), self.cut) if self.cuts is None else self.cuts)]
        pieces = [text] if whole else [text[i:j] for i, j in zip(begins, [*begins[1:], None], strict=True)]
        for number, piece in enumerate(pieces, 1):
            tokens = [1] * -(-len(piece) // self.cut)
            if "</think>" in piece and "</think>" in added:
                tokens[piece.index("</think>") // self.cut] = added["</think>"]
            is_last = number == len(pieces)
            completion = CompletionOutput(0, piece, tokens, finish_reason=self.reason if is_last else None)
            yield RequestOutput("r", prompt.text, prompt.token_ids, [completion], finished=is_last)

"""The body of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from corellm.server.requests.body import FIRST_ERROR
from corellm.server.requests.sampling import CompletionFields

_TokenIds = Annotated[list[int], FIRST_ERROR]
_Texts = Annotated[list[str], FIRST_ERROR]
Prompt = str | list[int]
"""One prompt, as text or token ids."""


class CompletionRequest(CompletionFields):
    """`POST /v1/completions`."""

    IGNORED: ClassVar[Mapping[str, str]] = {"user": "whose request it is"}
    REFUSED: ClassVar[Mapping[str, tuple[Sequence[Any], str]]] = {
        "best_of": ((1,), "take n completions and choose the most likely one"),
        "suffix": (("",), "models cannot fill in; give the text before as the prompt"),
    }

    prompt: Annotated[
        str | _TokenIds | _Texts | Annotated[list[_TokenIds], FIRST_ERROR], Field(union_mode="left_to_right")
    ]
    """Text or token ids, or a list of either."""
    echo: bool | None = None
    """Put the prompt before the output."""
    logprobs: int | None = None
    """Report log-probabilities of this many most likely tokens."""

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, one or several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]

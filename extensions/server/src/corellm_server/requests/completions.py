"""The body of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from corellm.known_fields import Absent
from corellm_server.requests.body import FIRST_ERROR
from corellm_server.requests.sampling import CompletionFields

_TokenIds = Annotated[list[int], FIRST_ERROR]
_Texts = Annotated[list[str], FIRST_ERROR]
Prompt = str | list[int]
"""One prompt, as text or token ids."""
Prompts = Annotated[
    str | _TokenIds | _Texts | Annotated[list[_TokenIds], FIRST_ERROR], Field(union_mode="left_to_right")
]
"""One or several prompts."""


def each_prompt(given: Prompts) -> list[Prompt]:
    """The prompts, one or several."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [[token for token in given if isinstance(token, int)]]
    return [prompt for prompt in given if not isinstance(prompt, int)]


class CompletionRequest(CompletionFields):
    """`POST /v1/completions`."""

    IGNORED: ClassVar[Mapping[str, str]] = {"user": "whose request it is"}
    REFUSED: ClassVar[Mapping[str, Absent]] = {
        **CompletionFields.REFUSED,
        "add_special_tokens": Absent((True,), "give the prompt as token ids, which get none"),
        "suffix": Absent(("",), "models cannot fill in; give the text before as the prompt"),
    }

    prompt: Prompts
    """Text or token ids, or a list of either."""
    echo: bool | None = None
    """Put the prompt before the output."""
    logprobs: int | None = None
    """Report log-probabilities of this many most likely tokens."""

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, one or several."""
        return each_prompt(self.prompt)

"""The bodies of `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corellm_server.requests.body import FIRST_ERROR, Body
from corellm_server.requests.chat import Conversation, Messages


class TokenizeRequest(Conversation):
    """`POST /tokenize`: a text, or a conversation with its media."""

    model: str | None = None
    """A name of `/v1/models`."""
    prompt: str | None = None
    """The text; or give `messages`."""
    messages: Messages = Field(default=[])
    """The conversation; or give `prompt`."""
    prompt_name: str | None = None
    """Name of a text that the checkpoint states (`query`, `document`, ...), to put before the prompt."""
    add_special_tokens: bool | None = None
    """Whether a text gets the tokenizer's special tokens; by default yes."""
    return_token_strs: bool | None = None
    """Return each token's text, too."""


class DetokenizeRequest(Body):
    """`POST /detokenize`."""

    model: str | None = None
    """A name of `/v1/models`."""
    tokens: Annotated[list[int], FIRST_ERROR]
    """Token ids."""

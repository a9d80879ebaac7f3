"""Types of OpenAI's client that the OpenAPI document describes responses by; imported when it is first asked for.

The client's types take half a second to import, and a request needs none of them.
"""

from __future__ import annotations

from openai.types import Completion, CreateEmbeddingResponse, Embedding
from openai.types import responses as types
from openai.types.audio import Transcription, Translation
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, create_model


class EncodedEmbedding(Embedding):
    """OpenAI's type, also with the embedding as base64."""

    embedding: list[float] | str  # type: ignore[assignment]


class EmbeddingResponse(CreateEmbeddingResponse):
    """The embeddings of all inputs."""

    data: list[EncodedEmbedding]  # type: ignore[assignment]


_Item = types.ResponseOutputMessage | types.ResponseFunctionToolCall | types.ResponseReasoningItem
_TextResponse = create_model(
    "Response", __base__=types.Response, __doc__="Messages, reasoning and calls.", instructions=(str | None, None),
    output=(list[_Item], ...), tools=(list[object], ...), tool_choice=(str, ...),
)  # fmt: skip
"""OpenAI's type without kinds of outputs and tools that there are not, which the document would list."""

TYPES: tuple[type[BaseModel], ...] = (
    ChatCompletion, Completion, EmbeddingResponse, Transcription, Translation, _TextResponse,
)  # fmt: skip
"""Types of whole responses; endpoints declare them by their names."""

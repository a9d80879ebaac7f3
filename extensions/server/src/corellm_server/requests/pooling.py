"""The bodies of requests to a model that pools: `/v1/embeddings`, `/classify`, `/pooling`, `/score`, `/rerank`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from corellm.known_fields import Absent
from corellm_server.errors import ApiError
from corellm_server.requests.body import FIRST_ERROR, Body
from corellm_server.requests.chat import Conversation, Messages
from corellm_server.requests.completions import Prompts

if TYPE_CHECKING:
    from corellm_pooling.params import PoolingParams

Encoding = Literal["float", "base64"]
Task = Literal["embed", "token_embed", "classify", "token_classify", "score", "reward"]
Side = str | dict[str, Any]
"""Text; a content part; or an object whose `content` is a list of parts."""
Sides = str | dict[str, Any] | Annotated[list[Side], FIRST_ERROR]


_OF_VECTORS = {
    "embed_dtype": Absent(("float32",), "results are float32; convert them"),
    "endianness": Absent(("native", "little"), "base64 is of float32 in little-endian order"),
}
"""How vectors are written, of other servers."""


class PooledFields(Body):
    """What all of them have."""

    IGNORED: ClassVar[Mapping[str, str]] = {"user": "whose request it is"}
    REFUSED: ClassVar[Mapping[str, Absent]] = {
        "add_special_tokens": Absent((True,), "give the input as token ids, which get none"),
        "stream": Absent((False,), "results come whole; leave it out"),
    }

    model: str
    """A name of `/v1/models`."""
    truncate_prompt_tokens: int | None = None
    """Keep this many of each prompt's first tokens, -1 as many as fit; an item is never cut."""
    priority: int | None = None
    """Lower runs first, if the server schedules by priority."""

    def params(self, task: Task, **given: Any) -> PoolingParams:
        """The parameters of each of its prompts.

        Raises:
            InvalidParameterError: a value out of range; names the field.
        """
        from corellm import PoolingParams

        return PoolingParams(task=task, truncate_prompt_tokens=self.truncate_prompt_tokens, **given)


class InputsRequest(PooledFields, Conversation):
    """One or several inputs, or a conversation."""

    input: Prompts | None = None
    """Text or token ids, or a list of either; or give `messages`."""
    messages: Messages = Field(default=[])
    """A conversation with its media, which is one input; or give `input`."""
    add_generation_prompt: bool | None = False
    """Whether a conversation ends with the start of the assistant's turn; by default no."""
    prompt_name: str | None = None
    """Name of a text that the checkpoint states (`query`, `passage`, ...), to put before each input, all of them text;
    by default the checkpoint's own choice."""


class EmbeddingRequest(InputsRequest):
    """`POST /v1/embeddings`."""

    REFUSED: ClassVar[Mapping[str, Absent]] = {**PooledFields.REFUSED, **_OF_VECTORS}

    dimensions: int | None = None
    """Length of the embeddings: the first entries, before they are normalised."""
    encoding_format: Encoding = "float"
    """`float` for lists of numbers, `base64` for float32 in little-endian order, which is a fourth as long."""
    normalize: bool | None = None
    """Whether embeddings have length one; by default as the checkpoint says, else yes."""


class ClassifyRequest(InputsRequest):
    """`POST /classify`."""

    use_activation: bool | None = None
    """False for logits in place of probabilities."""


class PoolingRequest(InputsRequest):
    """`POST /pooling`."""

    REFUSED: ClassVar[Mapping[str, Absent]] = {**PooledFields.REFUSED, **_OF_VECTORS}

    task: Task | None = None
    """Which results; by default `reward` of a reward model, else the model's first task."""
    dimensions: int | None = None
    """Length of embeddings."""
    encoding_format: Encoding = "float"
    """`float` for lists of numbers, `base64` for float32 in little-endian order, row by row."""
    use_activation: bool | None = None
    """Whether embeddings are normalised, or classes given as probabilities; by default as the model does."""


class PairsFields(PooledFields):
    """How pairs are scored."""

    late_interaction: bool | None = None
    """Compare the embeddings of all tokens (MaxSim); for models that embed. By default no, but of ColBERT models."""
    use_activation: bool | None = None
    """False for logits, of models that read both together."""


class ScoreRequest(PairsFields):
    """`POST /score`."""

    REFUSED: ClassVar[Mapping[str, Absent]] = {
        **PooledFields.REFUSED,
        "query": Absent((), "name it text_1 or queries, which also take one"),
        "document": Absent((), "name it text_2 or documents, which also take one"),
    }

    text_1: Sides | None = None
    """One query for all documents, or one for each: text, or parts with items (`{"content": [...]}`)."""
    text_2: Sides | None = None
    """The documents."""
    queries: Sides | None = None
    """Another name of `text_1`."""
    documents: Sides | None = None
    """Another name of `text_2`."""

    @property
    def sides(self) -> tuple[tuple[str, list[Side]], tuple[str, list[Side]]]:
        """The queries and the documents, each with the name of its field.

        Raises:
            ApiError: a side is missing, or there under both names.
        """
        return self._side("text_1", "queries"), self._side("text_2", "documents")

    def _side(self, *names: str) -> tuple[str, list[Side]]:
        given = [(name, getattr(self, name)) for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ApiError(400, f"give either {names[0]} or {names[1]}", param=names[0])
        ((name, side),) = given
        return name, side if isinstance(side, list) else [side]


class RerankRequest(PairsFields):
    """`POST /rerank`."""

    REFUSED: ClassVar[Mapping[str, Absent]] = {
        **PooledFields.REFUSED,
        "max_chunks_per_doc": Absent((), "documents are not cut into pieces; use truncate_prompt_tokens"),
        "max_tokens_per_doc": Absent((), "use truncate_prompt_tokens"),
        "rank_fields": Absent((), "documents have no fields; give their text"),
    }

    query: Side
    """Text, or parts with items (`{"content": [...]}`)."""
    documents: Annotated[list[Side], FIRST_ERROR]
    """What is ranked: texts, or parts with items."""
    top_n: int | None = None
    """How many of the best to return; by default all."""
    return_documents: bool = True
    """Whether results have their documents."""

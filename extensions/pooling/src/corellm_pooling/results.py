"""The results of pooled requests: one `PoolingRequestOutput` each, with an embedding, probabilities, a score or rows.

Plain data and numpy arrays: this room knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from corellm.errors import CorellmError
from corellm.outputs import RequestMetrics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True)
class PoolingOutput:
    """What the pooler gave."""

    data: NDArray[np.float32]
    """`[width]` for tasks with one result per prompt, `[tokens, width]` for those with one per token."""


@dataclass(slots=True)
class EmbeddingOutput:
    """The embedding of a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Its length."""
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """The classes of a prompt."""

    probs: list[float]
    """One number per label: probabilities, unless the request switched the activation off."""

    @property
    def num_classes(self) -> int:
        """Number of labels."""
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """How well a pair fits together."""

    score: float


OutputT = TypeVar("OutputT", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[OutputT]):
    """The result of one pooled request, or why it failed."""

    request_id: str
    outputs: OutputT | None
    """None if the request failed; `error` says why."""
    prompt_token_ids: list[int]
    """The prompt as the model saw it, placeholders expanded."""
    num_cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache."""
    finished: bool = True
    metrics: RequestMetrics | None = None
    error: CorellmError | None = None

"""What becomes of pooled hidden states: embeddings (projected, cut, normalised) or classes (scored, activated).

Knows tensors and a request's parameters; knows neither batches nor where the weights come from. Heads compute in
float32 whatever the model's dtype.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from corellm.errors import InvalidParameterError
from corellm_pooling.params import PoolerConfig, PoolingParams


class EmbeddingHead:
    """Hidden states to embeddings.

    Args:
        projector: of a sentence-transformer; None for none.
        width: of the hidden states.
        normalize: whether to normalise, where a request does not say.
        dimensions: lengths that embeddings can be cut to; None for any.
    """

    def __init__(
        self, projector: nn.Module | None, width: int, *, normalize: bool, dimensions: Collection[int] | None
    ) -> None:
        self._projector, self._normalize, self._dimensions = projector, normalize, dimensions
        self._width = width if projector is None else int(projector(torch.zeros(1, width)).shape[-1])

    def check(self, params: PoolingParams) -> None:
        """Refuse a length that embeddings do not have.

        Raises:
            InvalidParameterError: says which there are.
        """
        wanted = params.dimensions
        if wanted is None:
            return
        if wanted > self._width:
            raise InvalidParameterError(
                f"dimensions={wanted}, but the model's embeddings have {self._width}; ask for at most that",
                param="dimensions",
            )
        if self._dimensions is not None and wanted not in self._dimensions:
            raise InvalidParameterError(
                f"dimensions={wanted}, but the model was trained for {', '.join(map(str, sorted(self._dimensions)))}",
                param="dimensions",
            )

    def __call__(self, hidden: Tensor, params: PoolingParams) -> Tensor:
        """Return embeddings `[rows, width]` of hidden states `[rows, hidden_size]`: cut first, then normalised."""
        embeds = hidden.float()
        if self._projector is not None:
            embeds = self._projector(embeds)
        embeds = embeds[:, : params.dimensions]
        wanted = params.use_activation
        if self._normalize if wanted is None else wanted:
            embeds = nn.functional.normalize(embeds, dim=-1)
        return embeds


class ClassificationHead:
    """Hidden states to classes.

    Args:
        score: hidden states to logits, in float32.
        config: bias and scale of the logits; whether they are activated, where a request does not say.
        activation: `none`, `sigmoid` or `softmax`.
    """

    def __init__(self, score: nn.Module, config: PoolerConfig, activation: str) -> None:
        self._score, self._activation, self._activates = score, activation, config.use_activation is not False
        self._bias, self._scale = config.logit_bias, config.logit_scale

    def check(self, params: PoolingParams) -> None:
        """Classes can be given with any parameters."""

    def __call__(self, hidden: Tensor, params: PoolingParams) -> Tensor:
        """Return classes `[rows, labels]` of hidden states `[rows, hidden_size]`."""
        logits: Tensor = (self._score(hidden.float()) - self._bias) * self._scale
        wanted = params.use_activation
        if not (self._activates if wanted is None else wanted) or self._activation == "none":
            return logits
        return logits.sigmoid() if self._activation == "sigmoid" else logits.softmax(dim=-1)


Head = EmbeddingHead | ClassificationHead

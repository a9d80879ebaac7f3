"""What requests give; every pooled request gives a `PoolingRequestOutput`."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "ClassificationOutput": "corellm.pooling_outputs",
    "ClassificationRequestOutput": "corellm.pooling_outputs:PoolingRequestOutput",
    "CompletionOutput": "corellm.outputs",
    "EmbeddingOutput": "corellm.pooling_outputs",
    "EmbeddingRequestOutput": "corellm.pooling_outputs:PoolingRequestOutput",
    "PoolingOutput": "corellm.pooling_outputs",
    "PoolingRequestOutput": "corellm.pooling_outputs",
    "RequestMetrics": "corellm.outputs",
    "RequestOutput": "corellm.outputs",
    "ScoringOutput": "corellm.pooling_outputs",
    "ScoringRequestOutput": "corellm.pooling_outputs:PoolingRequestOutput",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)

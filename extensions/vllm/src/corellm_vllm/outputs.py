"""What requests give; every pooled request gives a `PoolingRequestOutput`."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "ClassificationOutput": "corellm_pooling.results",
    "ClassificationRequestOutput": "corellm_pooling.results:PoolingRequestOutput",
    "CompletionOutput": "corellm.outputs",
    "EmbeddingOutput": "corellm_pooling.results",
    "EmbeddingRequestOutput": "corellm_pooling.results:PoolingRequestOutput",
    "PoolingOutput": "corellm_pooling.results",
    "PoolingRequestOutput": "corellm_pooling.results",
    "RequestMetrics": "corellm.outputs",
    "RequestOutput": "corellm.outputs",
    "ScoringOutput": "corellm_pooling.results",
    "ScoringRequestOutput": "corellm_pooling.results:PoolingRequestOutput",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)

"""The names of vLLM's Python interface for corellm: in a script written for it, only the import changes.

What corellm does not have is refused by a typed error that says what to use instead. Importing this package imports
neither torch nor transformers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from corellm_vllm.absent.exports import AbsentModules, exports

if TYPE_CHECKING:
    from corellm.outputs import CompletionOutput as CompletionOutput
    from corellm.outputs import RequestOutput as RequestOutput
    from corellm.prompts import PromptType as PromptType
    from corellm.prompts import TextPrompt as TextPrompt
    from corellm.prompts import TokensPrompt as TokensPrompt
    from corellm_decoding import BeamSearchParams as BeamSearchParams
    from corellm_pooling.results import ClassificationOutput as ClassificationOutput
    from corellm_pooling.results import EmbeddingOutput as EmbeddingOutput
    from corellm_pooling.results import PoolingOutput as PoolingOutput
    from corellm_pooling.results import PoolingRequestOutput as PoolingRequestOutput
    from corellm_pooling.results import ScoringOutput as ScoringOutput
    from corellm_vllm.engine.arg_utils import AsyncEngineArgs as AsyncEngineArgs
    from corellm_vllm.engine.arg_utils import EngineArgs as EngineArgs
    from corellm_vllm.engine.async_llm_engine import AsyncLLM as AsyncLLM
    from corellm_vllm.engine.async_llm_engine import AsyncLLMEngine as AsyncLLMEngine
    from corellm_vllm.engine.llm_engine import LLMEngine as LLMEngine
    from corellm_vllm.entrypoints.llm import LLM as LLM
    from corellm_vllm.pooling_params import PoolingParams as PoolingParams
    from corellm_vllm.sampling_params import SamplingParams as SamplingParams

__version__ = "0.2.0"

_HOMES = {
    "LLM": "corellm_vllm.entrypoints.llm",
    "AsyncEngineArgs": "corellm_vllm.engine.arg_utils",
    "AsyncLLM": "corellm_vllm.engine.async_llm_engine",
    "AsyncLLMEngine": "corellm_vllm.engine.async_llm_engine",
    "BeamSearchParams": "corellm_decoding",
    "ClassificationOutput": "corellm_pooling.results",
    "ClassificationRequestOutput": "corellm_pooling.results:PoolingRequestOutput",
    "CompletionOutput": "corellm.outputs",
    "EmbeddingOutput": "corellm_pooling.results",
    "EmbeddingRequestOutput": "corellm_pooling.results:PoolingRequestOutput",
    "EngineArgs": "corellm_vllm.engine.arg_utils",
    "LLMEngine": "corellm_vllm.engine.llm_engine",
    "PoolingOutput": "corellm_pooling.results",
    "PoolingParams": "corellm_vllm.pooling_params",
    "PoolingRequestOutput": "corellm_pooling.results",
    "PromptType": "corellm.prompts",
    "RequestOutput": "corellm.outputs",
    "SamplingParams": "corellm_vllm.sampling_params",
    "ScoringOutput": "corellm_pooling.results",
    "ScoringRequestOutput": "corellm_pooling.results:PoolingRequestOutput",
    "TextPrompt": "corellm.prompts",
    "TokensPrompt": "corellm.prompts",
}
__all__ = sorted(_HOMES)

sys.meta_path.append(AbsentModules())
__getattr__ = exports(__name__, _HOMES)

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
    from corellm.pooling_outputs import ClassificationOutput as ClassificationOutput
    from corellm.pooling_outputs import EmbeddingOutput as EmbeddingOutput
    from corellm.pooling_outputs import PoolingOutput as PoolingOutput
    from corellm.pooling_outputs import PoolingRequestOutput as PoolingRequestOutput
    from corellm.pooling_outputs import ScoringOutput as ScoringOutput
    from corellm.prompts import PromptType as PromptType
    from corellm.prompts import TextPrompt as TextPrompt
    from corellm.prompts import TokensPrompt as TokensPrompt
    from corellm_decoding import BeamSearchParams as BeamSearchParams
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
    "ClassificationOutput": "corellm.pooling_outputs",
    "ClassificationRequestOutput": "corellm.pooling_outputs:PoolingRequestOutput",
    "CompletionOutput": "corellm.outputs",
    "EmbeddingOutput": "corellm.pooling_outputs",
    "EmbeddingRequestOutput": "corellm.pooling_outputs:PoolingRequestOutput",
    "EngineArgs": "corellm_vllm.engine.arg_utils",
    "LLMEngine": "corellm_vllm.engine.llm_engine",
    "PoolingOutput": "corellm.pooling_outputs",
    "PoolingParams": "corellm_vllm.pooling_params",
    "PoolingRequestOutput": "corellm.pooling_outputs",
    "PromptType": "corellm.prompts",
    "RequestOutput": "corellm.outputs",
    "SamplingParams": "corellm_vllm.sampling_params",
    "ScoringOutput": "corellm.pooling_outputs",
    "ScoringRequestOutput": "corellm.pooling_outputs:PoolingRequestOutput",
    "TextPrompt": "corellm.prompts",
    "TokensPrompt": "corellm.prompts",
}
__all__ = sorted(_HOMES)

sys.meta_path.append(AbsentModules())
__getattr__ = exports(__name__, _HOMES)

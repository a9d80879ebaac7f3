"""corellm: a slim inference engine for multimodal language models; every model family is a plugin.

Importing this package imports neither torch nor transformers: public names are loaded when first used.
Some are extensions': without these, a typed error says what to install.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from corellm.moved import OldNames, require

if TYPE_CHECKING:
    from corellm.config import EngineConfig as EngineConfig
    from corellm.engine.async_llm import AsyncLLM as AsyncLLM
    from corellm.engine.llm_engine import LLMEngine as LLMEngine
    from corellm.errors import CorellmError as CorellmError
    from corellm.llm import LLM as LLM
    from corellm.outputs import CompletionOutput as CompletionOutput
    from corellm.outputs import Logprob as Logprob
    from corellm.outputs import RequestMetrics as RequestMetrics
    from corellm.outputs import RequestOutput as RequestOutput
    from corellm.prompts import PromptType as PromptType
    from corellm.prompts import TextPrompt as TextPrompt
    from corellm.prompts import TokensPrompt as TokensPrompt
    from corellm.sampling_params import RequestOutputKind as RequestOutputKind
    from corellm.sampling_params import SamplingParams as SamplingParams
    from corellm.structured_outputs import ReasoningParams as ReasoningParams
    from corellm.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
    from corellm_lora.lora_request import LoRARequest as LoRARequest
    from corellm_pooling.params import PoolerConfig as PoolerConfig
    from corellm_pooling.params import PoolingParams as PoolingParams
    from corellm_pooling.results import ClassificationOutput as ClassificationOutput
    from corellm_pooling.results import EmbeddingOutput as EmbeddingOutput
    from corellm_pooling.results import PoolingOutput as PoolingOutput
    from corellm_pooling.results import PoolingRequestOutput as PoolingRequestOutput
    from corellm_pooling.results import ScoringOutput as ScoringOutput

__version__ = "0.2.0"

sys.meta_path.insert(0, OldNames())  # before what finds files: it would load a moved module a second time

_HOMES = {
    "AsyncLLM": "corellm.engine.async_llm",
    "ClassificationOutput": "corellm_pooling.results",
    "CompletionOutput": "corellm.outputs",
    "CorellmError": "corellm.errors",
    "EmbeddingOutput": "corellm_pooling.results",
    "EngineConfig": "corellm.config",
    "LLM": "corellm.llm",
    "LLMEngine": "corellm.engine.llm_engine",
    "LoRARequest": "corellm_lora.lora_request",
    "Logprob": "corellm.outputs",
    "PoolerConfig": "corellm_pooling.params",
    "PoolingOutput": "corellm_pooling.results",
    "PoolingParams": "corellm_pooling.params",
    "PoolingRequestOutput": "corellm_pooling.results",
    "PromptType": "corellm.prompts",
    "ReasoningParams": "corellm.structured_outputs",
    "RequestMetrics": "corellm.outputs",
    "RequestOutput": "corellm.outputs",
    "RequestOutputKind": "corellm.sampling_params",
    "SamplingParams": "corellm.sampling_params",
    "ScoringOutput": "corellm_pooling.results",
    "StructuredOutputsParams": "corellm.structured_outputs",
    "TextPrompt": "corellm.prompts",
    "TokensPrompt": "corellm.prompts",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "ClassificationOutput",
    "CompletionOutput",
    "CorellmError",
    "EmbeddingOutput",
    "EngineConfig",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "PoolerConfig",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "ReasoningParams",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'corellm' has no attribute {name!r}")
    require(f"corellm.{name}", f"{_HOMES[name]}.{name}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

"""corellm: a slim inference engine for multimodal language models; every model family is a plugin.

Importing this package imports neither torch nor transformers: public names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

__version__ = "0.2.0"

_HOMES = {
    "AsyncLLM": "corellm.engine.async_llm",
    "CompletionOutput": "corellm.outputs",
    "CorellmError": "corellm.errors",
    "EngineConfig": "corellm.config",
    "LLM": "corellm.llm",
    "LLMEngine": "corellm.engine.llm_engine",
    "Logprob": "corellm.outputs",
    "PromptType": "corellm.prompts",
    "RequestMetrics": "corellm.outputs",
    "RequestOutput": "corellm.outputs",
    "RequestOutputKind": "corellm.sampling_params",
    "SamplingParams": "corellm.sampling_params",
    "TextPrompt": "corellm.prompts",
    "TokensPrompt": "corellm.prompts",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "CorellmError",
    "EngineConfig",
    "LLMEngine",
    "Logprob",
    "PromptType",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from corellm.absent.names import NAMES
        from corellm.absent.table import absent_name

        raise absent_name("corellm", name, NAMES)
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

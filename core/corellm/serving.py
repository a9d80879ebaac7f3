"""What a server may use of the engine, beside the public pages: one page, so that the engine's rooms can change.

    client      `EngineClient`, which both engines are: `AsyncLLM` in this process, `ProcessLLM` in one of its own
    processes   a `RemoteEngine` prepares prompts for what its link leads to: one process (`EngineLink`), which may have
                a `Share` of the machine; outputs come as `Delta`s, errors in them `to_fault` and back
    prompts     an `InputProcessor` makes a `ProcessedPrompt` in any thread, by fairly shared `PreparationPools`
    metrics     `Metric`, with `METRIC_DESCRIPTIONS` by name; `total_metrics` of several engines

Importing it imports no torch.
"""

from __future__ import annotations

from corellm.engine.async_llm import AsyncLLM as AsyncLLM
from corellm.engine.client import EngineClient as EngineClient
from corellm.engine.maintenance import reset_prefix_cache_of as reset_prefix_cache_of
from corellm.engine.metrics import DESCRIPTIONS as METRIC_DESCRIPTIONS
from corellm.engine.metrics import Counter as Counter
from corellm.engine.metrics import Gauge as Gauge
from corellm.engine.metrics import Metric as Metric
from corellm.engine.metrics import Vector as Vector
from corellm.engine.metrics import total_metrics as total_metrics
from corellm.engine.process.client import ProcessLLM as ProcessLLM
from corellm.engine.process.client import name_of as name_of
from corellm.engine.process.codec import metrics_of as metrics_of
from corellm.engine.process.codec import plain_metrics as plain_metrics
from corellm.engine.process.faults import to_error as to_error
from corellm.engine.process.faults import to_fault as to_fault
from corellm.engine.process.link import EngineLink as EngineLink
from corellm.engine.process.messages import Delta as Delta
from corellm.engine.process.messages import Ready as Ready
from corellm.engine.process.process import Share as Share
from corellm.engine.process.remote_engine import RemoteEngine as RemoteEngine
from corellm.frontend.input_processor import InputProcessor as InputProcessor
from corellm.frontend.input_processor import ProcessedPrompt as ProcessedPrompt
from corellm.frontend.preparation_pools import PreparationPools as PreparationPools
from corellm.frontend.text_limit import CHEAP_CHARACTERS as CHEAP_CHARACTERS

__all__ = [
    "CHEAP_CHARACTERS",
    "METRIC_DESCRIPTIONS",
    "AsyncLLM",
    "Counter",
    "Delta",
    "EngineClient",
    "EngineLink",
    "Gauge",
    "InputProcessor",
    "Metric",
    "PreparationPools",
    "ProcessLLM",
    "ProcessedPrompt",
    "Ready",
    "RemoteEngine",
    "Share",
    "Vector",
    "metrics_of",
    "name_of",
    "plain_metrics",
    "reset_prefix_cache_of",
    "to_error",
    "to_fault",
    "total_metrics",
]

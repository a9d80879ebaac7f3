"""The sides of the comparison: which engine, in which environment, with which options, for which workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from bench.peers.workloads import WORKLOADS

OURS = "corellm"


@dataclass(frozen=True)
class Side:
    """One of them."""

    engine: str
    """Module of `bench.peers.engines`."""
    environment: str | None = None
    """The peer's; None for corellm's own."""
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    serve: tuple[str, ...] = ()
    """Command of its server, after its interpreter."""


_BATCHES = ("W1", "W2", "W7")
_COMMON = (
    "--port", "{port}", "--dtype", "{dtype}", "--max-model-len", "2048", "--max-num-seqs", "32",
    "--max-num-batched-tokens", "2048",
)  # fmt: skip

SIDES = {
    OURS: Side(
        "corellm",
        serve=("-m", "corellm", "serve", "{model}", *_COMMON, "--kv-cache-memory", str(1 << 30),
               "--log-level", "warning"),
    ),
    "corellm, no caches": Side(
        "corellm", workloads=("W3",),
        options={"enable_prefix_caching": False, "mm_processor_cache_gb": 0, "encoder_cache_size": 0},
    ),
    "vllm-cpu": Side(
        "vllm", "vllm",
        serve=("-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", *_COMMON, "--enforce-eager"),
    ),
    "openvino-genai": Side("openvino", "openvino", tuple(name for name in WORKLOADS if name != "W5")),
    "transformers": Side("transformers", workloads=("W1", "W2", "W3", "W4", "W6", "W7")),
    "transformers, batched": Side("transformers", workloads=_BATCHES, options={"batched": True}),
}  # fmt: skip
"""By name, in the order in which they run. OpenVINO GenAI and `generate` have no server."""

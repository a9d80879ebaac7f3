"""The sides of the comparison: which engine, in which environment, with which options, for which workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from bench.peers.workloads import WORKLOADS

OURS = "corellm"
OURS_OF_BITS = {16: OURS, 8: "corellm, int8", 4: "corellm, int4"}
"""What others are compared with: our side whose weights have as many bits."""


@dataclass(frozen=True)
class Side:
    """One of them."""

    engine: str
    """Module of `bench.peers.engines`."""
    environment: str | None = None
    """The peer's; None for corellm's own."""
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    bits: int = 16
    """Of a weight, about; 16 is the type of the measurement."""
    form: str = "model"
    """The file or folder of the checkpoint that it reads: `model` as the hub has it, or what is made of that."""
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    serve: tuple[str, ...] = ()
    """Command of its server, after its interpreter."""


_BATCHES = ("W1", "W2", "W7")
_ROUNDED = ("W1", "W2", "W4", "W6")
_INT8_INPUTS = {"activation_dtype": "int8"}
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
    "openvino-genai": Side(
        "openvino", "openvino", tuple(name for name in WORKLOADS if name != "W5"), form="openvino",
    ),
    "llama.cpp, F16": Side("llamacpp", "llama.cpp", _ROUNDED, form="gguf/F16.gguf"),
    "transformers": Side("transformers", workloads=("W1", "W2", "W3", "W4", "W6", "W7")),
    "transformers, batched": Side("transformers", workloads=_BATCHES, options={"batched": True}),
    "corellm, int8": Side("corellm", None, _ROUNDED, 8, options={"quantization": "int8"}),
    "corellm, W8A8": Side("corellm", None, _ROUNDED, 8, options={"quantization": "int8", **_INT8_INPUTS}),
    "llama.cpp, Q8_0": Side("llamacpp", "llama.cpp", _ROUNDED, 8, form="gguf/Q8_0.gguf"),
    "openvino-genai, int8": Side("openvino", "openvino", _ROUNDED, 8, form="openvino-int8"),
    "corellm, int4": Side("corellm", None, _ROUNDED, 4, options={"quantization": "int4"}),
    "corellm, W4A8": Side("corellm", None, _ROUNDED, 4, options={"quantization": "int4", **_INT8_INPUTS}),
    "corellm, Q4_K_M": Side("corellm", None, _ROUNDED, 4, form="gguf/Q4_K_M.gguf"),
    "llama.cpp, Q4_K_M": Side("llamacpp", "llama.cpp", _ROUNDED, 4, form="gguf/Q4_K_M.gguf"),
    "openvino-genai, int4": Side("openvino", "openvino", _ROUNDED, 4, form="openvino-int4"),
}  # fmt: skip
"""By name, in the order in which they run. OpenVINO GenAI and `generate` have no server; llama.cpp has one, which is
not measured."""

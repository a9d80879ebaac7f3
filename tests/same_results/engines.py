"""Engines of one model under random settings, and with adapters; and which sets of kernels this processor runs."""

from __future__ import annotations

import ctypes
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from safetensors.numpy import save_file

from corellm import LLM, LoRARequest
from corellm_kernels.cpu import library
from corellm_kernels.cpu.build import instruction_sets, library_path
from corellm_lora.terms import Terms
from tests.same_results.models import Model

LENGTH = 160
STATES = 160
"""Most states of a request's items, which are in blocks, too."""
DTYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantization": "int8"},
    "int8 on bfloat16": {
        "dtype": "bfloat16",
        "quantization": "int8",
        "activation_dtype": "int8",
        "kv_cache_dtype": "int8",
    },
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
LORA = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 2}
"""Fewer than there are adapters: requests wait for one another's."""
DRAFTS: tuple[dict[str, Any] | None, ...] = (
    {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    {"method": "suffix", "num_speculative_tokens": 7},
    None,
)
PLAIN: dict[str, Any] = {"num_kv_blocks": 100, "enforce_eager": True, "enable_prefix_caching": False}
"""Of an engine that is asked for one request at a time."""
CHUNKS: tuple[dict[str, Any], ...] = (
    *({"max_num_batched_tokens": budget} for budget in (70, 110, LENGTH)),
    {"enable_chunked_prefill": False},
)
CROWDED: dict[str, Any] = {
    "block_size": [16, 8, 32],
    "max_num_seqs": [5, 8, 2],
    "enable_prefix_caching": [True, True, False],
    "enforce_eager": [False, False, True],
    "preemption_mode": ["recompute", "swap"],
    "mm_processor_cache_gb": [1.0, 0.0],
    "speculative_config": DRAFTS,
}


def kernel_sets() -> list[str]:
    """Return the sets of kernels that are built and run on this processor, the best first."""
    paths = {name: library_path(name) for name in instruction_sets(platform.machine())}
    return [name for name, path in paths.items() if path.is_file() and ctypes.CDLL(str(path)).corellm_supported()]


@contextmanager
def kernels(name: str) -> Iterator[None]:
    """Run a set of kernels in engines that are loaded meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORELLM_CPU_KERNELS", name)
        _forget()
        yield
    _forget()


def _forget() -> None:
    for cached in (library._library, library.kernel, library.unavailable):
        cached.cache_clear()


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Engines:
    """The engines of a model: plain ones, which are kept, and crowded ones. Closes all that it loaded."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model = model
        self.path = model.make(folder / "model")
        self.adapters: list[LoRARequest] = []
        self._folder = folder
        self._plain: dict[tuple[str, bool], LLM] = {}
        self._stack = ExitStack()

    def close(self) -> None:
        """Close the plain ones."""
        self._stack.close()

    @property
    def loras(self) -> list[bool]:
        """Whether there may be adapters."""
        return [False] if "enable_lora" in self.model.refused else [True, False]

    def settings(self) -> st.SearchStrategy[dict[str, Any]]:
        """Return settings of crowded engines that the model is not refused with."""
        taken = {name: values for name, values in CROWDED.items() if name not in self.model.refused}
        drawn = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in taken.items()})
        return st.builds(lambda chunks, others: {**chunks, **others}, st.sampled_from(CHUNKS), drawn)

    def options(self, dtype: str, lora: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of an engine, whose blocks hold the longest request, but not many together."""
        options = {
            "max_model_len": LENGTH, "generation_config": "none", "device": "cpu", "scheduling_policy": "priority",
            "num_kv_blocks": self._tokens // settings.get("block_size", 16), **DTYPES[dtype], **(LORA if lora else {}),
        }  # fmt: skip
        return {**{name: value for name, value in options.items() if name not in self.model.refused}, **settings}

    @property
    def _tokens(self) -> int:
        """Room in the cache: where it holds states of items (and so cannot be of 8 bits), for these, too."""
        return LENGTH + (STATES if "kv_cache_dtype" in self.model.refused else 0)

    def plain(self, dtype: str, lora: bool) -> LLM:
        """Return an engine to ask for one request at a time: in whole prompts, on no recorded plans."""
        if (dtype, lora) not in self._plain:
            llm = self._stack.enter_context(LLM(str(self.path), **self.options(dtype, lora, PLAIN)))
            self._plain[dtype, lora] = llm
            if lora and not self.adapters:
                terms = Terms.noted(llm.engine.context.findings)
                assert terms is not None
                self.adapters = [write_adapter(self._folder / str(n), terms, n) for n in range(3)]
        return self._plain[dtype, lora]


def write_adapter(folder: Path, terms: Terms, number: int) -> LoRARequest:
    """Write an adapter with random factors, of a rank of its own, for most layers, for experts and their routers."""
    random, tensors, rank = np.random.default_rng(number), {}, 3 + 4 * number
    sizes = [*[*terms.layers.items()][number:], *terms.routers.items()]
    targets = [f"{module}.weight" for module in terms.routers]
    for module, parameters in terms.experts.items():
        for name, own in zip(parameters, (f"{module}.base_layer", module), strict=True):
            count, inputs, outputs = parameters[name]
            targets.append(f"{module}.{name}")
            for factor, size in (("A", (count * rank, inputs)), ("B", (outputs, count * rank))):
                values = random.standard_normal(size, dtype=np.float32) / 8
                tensors[f"base_model.model.{own}.lora_{factor}.weight"] = values
    for module, (inputs, outputs) in sizes:
        for factor, size in (("A", (rank, inputs)), ("B", (outputs, rank))):
            values = random.standard_normal(size, dtype=np.float32) / 8
            tensors[f"base_model.model.{module}.lora_{factor}.weight"] = values
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_parameters": targets}
    (folder / "adapter_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return LoRARequest(folder.name, number + 1, str(folder))

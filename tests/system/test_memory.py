"""A GPU's memory is divided as measured; out-of-memory errors say what to lower."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM
from corellm.config import CacheConfig, EngineConfig
from corellm.errors import ConfigError
from corellm.loading.checkpoint import resolve_device
from corellm.loading.dummy_steps import profile_run
from corellm.system.memory import DeviceMemory
from corellm.worker.kv_cache import CacheBytes, LayerLayout, block_bytes, cache_dtype, choose_num_blocks

GIB = 2**30
GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A GPU of 80 GiB, of which others have 2; change the numbers as a test goes on."""
    state = {"free": 78 * GIB, "peak": 0, "reserved": 0, "allocated": 0}
    fakes: dict[str, Any] = {
        "mem_get_info": lambda device: (state["free"], 80 * GIB),
        "memory_reserved": lambda device: state["reserved"],
        "memory_allocated": lambda device: state["allocated"],
        "max_memory_allocated": lambda device: state["peak"],
        "reset_peak_memory_stats": lambda device: None,
        "synchronize": lambda device: None,
        "empty_cache": lambda: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return state


def test_blocks_get_what_the_busiest_step_leaves(gpu: dict[str, int]) -> None:
    memory = DeviceMemory(GPU, 0.9)
    gpu["peak"] = 20 * GIB
    ran: list[int] = []
    memory.measure_peak(lambda: ran.append(1))
    assert ran
    assert memory.left_for_blocks() == int(0.9 * 80 * GIB) - 2 * GIB - 20 * GIB
    assert choose_num_blocks(CacheConfig(), CacheBytes(GIB), 10**9, memory) == 50 + 1
    assert choose_num_blocks(CacheConfig(kv_cache_memory=3 * GIB), CacheBytes(GIB), 10**9, memory) == 3 + 1


def test_what_fits_nowhere_is_not_for_blocks(gpu: dict[str, int]) -> None:
    """Holes that the allocator cannot give back."""
    memory = DeviceMemory(GPU, 0.9)
    gpu.update(peak=20 * GIB, allocated=14 * GIB, reserved=17 * GIB)
    memory.measure_peak(lambda: None)
    assert memory.left_for_blocks() == int(0.9 * 80 * GIB) - 2 * GIB - 23 * GIB


def test_another_model_of_this_process_is_one_of_the_others(gpu: dict[str, int]) -> None:
    """Its tensors are not counted twice, and what it has given back to the allocator is free."""
    gpu.update(free=43 * GIB, allocated=30 * GIB, reserved=35 * GIB)
    memory = DeviceMemory(GPU, 0.9)
    gpu["peak"] = 40 * GIB
    memory.measure_peak(lambda: gpu.update(reserved=30 * GIB))
    assert memory.left_for_blocks() == int(0.9 * 80 * GIB) - 32 * GIB - 10 * GIB


def test_no_memory_for_blocks_is_told(gpu: dict[str, int]) -> None:
    memory = DeviceMemory(GPU, 0.5)
    gpu["peak"] = 39 * GIB
    memory.measure_peak(lambda: None)
    with pytest.raises(ConfigError, match=r"80.0 GiB, 50% .* 2.0, .* 39.0; .*gpu_mem"):
        memory.left_for_blocks()


def test_running_out_is_told_with_what_needed_it(gpu: dict[str, int]) -> None:
    memory = DeviceMemory(GPU, 0.9)
    gpu.update(free=GIB, reserved=2 * GIB, allocated=GIB)
    with (
        pytest.raises(ConfigError, match=r"cuda:0 \(2.0 GiB free\) .*weights"),
        memory.explaining("the weights", "take less"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_quantized_cache_counts_its_factors() -> None:
    layout = {0: LayerLayout(2, 64, 64)}
    assert block_bytes(layout, 16, torch.bfloat16) == 16 * 2 * 128 * 2
    assert block_bytes(layout, 16, torch.int8) == 16 * 2 * (128 + 8)
    assert cache_dtype("auto", torch.bfloat16) == torch.bfloat16
    assert cache_dtype("fp8", torch.bfloat16) == torch.float8_e4m3fn


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == torch.device("cpu") == resolve_device("cpu")
    with pytest.raises(ConfigError, match=r"device='cuda': .* no NVIDIA GPUs"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("auto") == resolve_device("cuda") == resolve_device("cuda:0") == GPU
    with pytest.raises(ConfigError, match=r"device='cuda:1': .* 1 NVIDIA GPU"):
        resolve_device("cuda:1")


@pytest.mark.parametrize(
    "wrong",
    [{"device": "gpu"}, {"gpu_memory_utilization": 0}, {"gpu_memory_utilization": 1.1}, {"kv_cache_dtype": "fp4"}],
)
def test_wrong_wishes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EngineConfig.from_kwargs(model="demo", **wrong)


@pytest.mark.parametrize("family", ["llava", "fuyu", "blip2", "qwen_vl", "qwen_audio"])
def test_the_busiest_step_runs(family: str, tmp_path: Path) -> None:
    """With more tokens than a sequence may have, the largest items of the adapter, and a sequence of one block."""
    import importlib

    path = importlib.import_module(f"corellm_{family}.tiny").make_tiny_checkpoint(tmp_path)
    with LLM(str(path), max_model_len=512, num_kv_blocks=64) as llm:
        runner, profile = llm.engine.runner, llm.engine.input_processor.mm_processor.profile
        profile_run(runner, 700, 8, 512, profile.features)
        assert not runner._states


def test_a_closed_model_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that holds itself, as those with graphs do."""
    llm = LLM("demo")
    runner, emptied = llm.engine.runner, []
    runner.itself, model = runner, weakref.ref(runner.model)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    del runner
    llm.close()
    assert model() is None
    assert emptied

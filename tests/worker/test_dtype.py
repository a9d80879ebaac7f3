"""A float16 checkpoint on a CPU is run in what the CPU computes, unless the caller asks for float16."""

from __future__ import annotations

import json
import logging
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.loading.checkpoint import resolve_dtype
from corellm.system import devices

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("wanted", "stated", "device", "native", "dtype"),
    [
        ("auto", HALF, CPU, True, BRAIN),
        ("auto", HALF, CPU, False, FULL),
        ("auto", HALF, GPU, True, HALF),
        ("auto", BRAIN, CPU, False, BRAIN),
        ("auto", FULL, CPU, True, FULL),
        ("auto", None, CPU, True, FULL),
        ("float16", HALF, CPU, True, HALF),
    ],
)
def test_what_a_checkpoint_is_run_in(
    wanted: str,
    stated: torch.dtype | None,
    device: torch.device,
    native: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another type than the one that was stated or asked for is logged, once."""
    monkeypatch.setattr(devices, "computes_bfloat16", lambda: native)
    text_config = SimpleNamespace(dtype=stated)
    hf_config = SimpleNamespace(dtype=None, get_text_config=lambda: text_config)
    with caplog.at_level(logging.WARNING, "corellm"):
        assert resolve_dtype(wanted, hf_config, device) == dtype
    assert [f" {dtype};" in told for told in caplog.messages] == [True] * (stated == HALF and dtype != HALF)


def test_what_the_cpu_computes() -> None:
    """As Linux lists the features of x86 and of ARM."""
    feature = {"x86_64": "avx512_bf16", "aarch64": "bf16"}[platform.machine()]
    assert devices.computes_bfloat16() == (feature in Path("/proc/cpuinfo").read_text().split())


def test_a_float16_checkpoint_is_answered(tmp_path: Path, make_llava: Callable[..., Path]) -> None:
    """As if the type had been asked for."""
    path = shutil.copytree(make_llava(), tmp_path / "half")
    config = json.loads((path / "config.json").read_text()) | {"dtype": "float16"}
    config["text_config"]["dtype"] = config["vision_config"]["dtype"] = "float16"
    (path / "config.json").write_text(json.dumps(config))
    outputs = []
    for dtype in ("auto", "bfloat16" if devices.computes_bfloat16() else "float32"):
        with LLM(str(path), dtype=dtype, device="cpu", num_kv_blocks=64) as llm:
            (output,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
            outputs.append((llm.engine.context.dtype, output.outputs[0].token_ids))
    assert outputs[0] == outputs[1]

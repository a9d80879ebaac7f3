"""The GPU benchmark runs from end to end where there is no GPU, and its table is right about a run on one.

Timings are not looked at. What is: every part gives its figures, nothing fails, outputs are transformers', a process
that hangs or crashes costs only itself, and the arithmetic behind the figures (bytes, idle time) is right by other
means.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.gpu import __main__ as command
from bench.gpu import checkpoints, corellm_side, source_tree, table
from bench.gpu.results import Figures, Run


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu", *arguments], capture_output=True, text=True, timeout=1200,
        cwd=source_tree.ROOT, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """A quick run of everything, and its records."""
    out = tmp_path_factory.mktemp("gpu-bench")
    done = benchmark("--device", "cpu", "--quick", "--out", str(out))
    names = sorted(path.name for path in out.iterdir())
    assert names == ["log.txt", "results.json", "table.txt", "tests.log"], done.stdout + done.stderr
    assert done.stdout.endswith((out / "table.txt").read_text(encoding="utf-8"))
    return done, json.loads((out / "results.json").read_text(encoding="utf-8"))


def figures(records: list[dict[str, Any]]) -> Figures:
    """The figures among records."""
    return {record["case"]: record["values"] for record in records if record["kind"] == "figure"}


class TestQuickRun:
    """Everything, with tiny shapes, on the CPU."""

    def test_nothing_fails_and_the_table_says_what_the_figures_are_worth(self, quick: Any) -> None:
        done, records = quick
        assert [record for record in records if record["kind"] == "failure"] == []
        assert done.returncode == 0
        assert done.stdout.rstrip().endswith("failed: nothing")
        assert "THE FIGURES MEAN NOTHING" in done.stdout

    def test_what_can_be_measured_without_a_gpu_is_measured(self, quick: Any) -> None:
        missing = [row.label for row in table.asked(figures(quick[1])) if row.value is None]
        assert all(label.startswith(("idle", "paged decode")) for label in missing), missing

    @pytest.mark.parametrize(("workload", "tokens"), [("W1", 4), ("W2", 6)])
    def test_outputs_are_those_of_transformers(self, quick: Any, workload: str, tokens: int) -> None:
        found = figures(quick[1])
        theirs = table.fastest_transformers(found, "tiny", workload)
        assert table.equal_tokens(found[f"tiny {workload} corellm"]["leading"], theirs["leading"]) == (1.0, tokens)

    def test_kernels_are_compared_before_they_are_timed(self, quick: Any) -> None:
        errors = [values["error"] for values in figures(quick[1]).values() if "error" in values]
        assert len(errors) == 4
        assert all(0 <= error < 1e-4 for error in errors)


def test_a_machine_without_a_gpu_is_told_so_at_once(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        done = benchmark("--quick", "--out", str(tmp_path))  # tiny shapes on a GPU say nothing, and are refused
        assert "--device cpu" in done.stderr
        return
    done = benchmark("--out", str(tmp_path))
    assert done.returncode == 1
    assert "no NVIDIA GPU" in (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert "ended with 1; log.txt" in done.stdout


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with nothing in it."""
    return Run("cpu", True, str(tmp_path), str(tmp_path / "scratch"), time.monotonic() + 600)


def failures(run: Run) -> dict[str, str]:
    """The messages of what failed, by case."""
    return {record["case"]: record["values"]["message"] for record in run.read() if record["kind"] == "failure"}


@pytest.mark.parametrize(
    ("program", "seconds", "message"),
    [
        ("import time; time.sleep(60)", 0.5, "time limit"),
        ("import os; os.abort()", 300, "ended with -6; log.txt"),
    ],
)
def test_a_process_that_hangs_or_crashes_is_a_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, seconds: float, message: str
) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{program}'\n", encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))
    command.run_jobs(run, ["attention"], seconds)
    (failure,) = failures(run).items()
    assert failure[0] == "attention"
    assert message in failure[1]


def test_what_fails_within_a_process_is_captured_and_the_rest_goes_on(run: Run) -> None:
    command.run_jobs(run, ["nowhere", "ceilings"], 600)
    assert failures(run) == {"nowhere": "ModuleNotFoundError: No module named 'bench.gpu.nowhere'"}
    assert "Traceback" in Path(run.out, "log.txt").read_text(encoding="utf-8")
    assert run.ceiling("copy") > 0


def test_a_line_that_was_cut_off_is_not_read(run: Run) -> None:
    run.figure("first", ms=1.5)
    with Path(run.out, "results.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "figure", "ca')
    assert run.figures() == {"first": {"ms": 1.5}}


def test_a_checkpoint_in_parts_has_no_other_weights(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in parts keeps no weights of the tiny one from which it is made: they would be loaded first."""
    monkeypatch.setattr(checkpoints, "_SHARD", "300KB")
    checkpoints._write(run, "tiny", checkpoints.SIZES["tiny"])
    names = sorted(path.name for path in run.checkpoint("tiny").glob("*.safetensors*"))
    assert names[-1] == "model.safetensors.index.json"
    assert all(name.startswith("model-0000") for name in names[:-1])
    assert len(names) > 2


def test_entry_points_are_found_from_source(tmp_path: Path) -> None:
    program = (
        "import json; from importlib.metadata import entry_points\n"
        "found = [(e.group, e.name, e.dist.name, str(e.dist.locate_file('')))"
        " for group in ('corellm.models', 'corellm.extensions') for e in entry_points(group=group)]\n"
        "import corellm; print(json.dumps([found, corellm.__file__]))"
    )
    metadata = tmp_path / "metadata"
    environment = {**os.environ, "PYTHONPATH": source_tree.python_path(metadata)}
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    found, where = json.loads(said.stdout)
    assert {folder for *_, folder in found} == {str(metadata)}
    assert ["corellm.extensions", "corellm-kernels", "corellm", str(metadata)] in found
    assert {"LlavaForConditionalGeneration", "FuyuForCausalLM"} <= {name for _, name, *_ in found}
    assert Path(where).is_relative_to(source_tree.ROOT / "core")


# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(checkpoints.SIZES))
def test_bytes_of_a_decode_step_are_those_of_the_model(name: str) -> None:
    size = checkpoints.SIZES[name]
    text = transformers.LlamaConfig(
        hidden_size=size.hidden, intermediate_size=size.intermediate, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, vocab_size=size.vocab,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(text)
    read = sum(weight.numel() for weight in model.parameters()) - model.get_input_embeddings().weight.numel()
    assert size.decoder_parameters == read
    attention = model.model.layers[0].self_attn
    assert size.kv_elements == size.layers * (attention.k_proj.out_features + attention.v_proj.out_features)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=12))
def test_idle_time_is_what_no_event_covers(spans: list[tuple[int, int]]) -> None:
    busy = np.zeros(100, dtype=bool)
    for start, length in spans:
        busy[start : start + length] = True
    whole = busy[np.argmax(busy) : len(busy) - np.argmax(busy[::-1])]
    gaps = [len(list(run)) for covered, run in itertools.groupby(whole) if not covered]
    found = corellm_side.occupancy([(float(start), float(start + length)) for start, length in spans], steps=2)
    assert found["idle"] == pytest.approx(sum(gaps) / len(whole))
    assert found["idle_long_gaps"] == pytest.approx(sum(gap for gap in gaps if gap > 10) / len(whole))


def test_the_dearest_kernels_come_first() -> None:
    spans = [(0.0, 1.0, "copy"), (1.0, 7.0, "gemm"), (7.0, 8.0, "copy"), (8.0, 8.5, "norm")]
    assert corellm_side.dearest(spans, most=2) == [("gemm", 6 / 8.5, 1), ("copy", 2 / 8.5, 2)]


def test_equal_tokens_counts_until_the_first_that_differs() -> None:
    assert table.equal_tokens([[1, 2, 3], [4, 5, 6]], [[1, 2, 9], [8, 5, 6]]) == (0.5, 1.0)


def full_run() -> Figures:
    """Figures under the names that full sizes have, all of them just good enough."""
    found: Figures = {
        "decode bf16 32/32 batch 64 context 16384": {"share": 0.9},
        "decode bf16 32/8 batch 64 context 16384": {"share": 0.85},
        "decode bf16 32/8 batch 8 context 4096": {"share": 0.1},
        "prefill 32/8 1 x 16384 after 0": {"ratio": 0.8},
        "prefill 32/8 1 x 4096 after 12288": {"ratio": 0.1},
    }
    leading = {"leading": [[1, 2], [3, 4]]}
    for model, batch in itertools.product(("7b", "1b"), (1, 8, 64, 256)):
        found[f"{model} graphs decode batch {batch}"] = {"ms": 4.0, "share": 0.85}
        found[f"{model} eager decode batch {batch}"] = {"ms": 12.0, "share": 0.28}
        found[f"{model} idle batch {batch}"] = {"idle": 0.04}
        found[f"{model} W1 corellm"] = {"tokens_per_s": 5000.0, **leading}
        found[f"{model} W1 transformers batch 64"] = {"tokens_per_s": 900.0, **leading}
        found[f"{model} W1 transformers batch 256"] = {"tokens_per_s": 1000.0, **leading}
        found[f"{model} W2 corellm"] = {"tokens_per_s": 2000.0, **leading}
        found[f"{model} W2 transformers"] = {"tokens_per_s": 1000.0, **leading}
    return found


def test_everything_asked_is_found_under_the_names_of_a_full_run_and_judged() -> None:
    rows = table.asked(full_run())
    assert [row.line().split()[-1] for row in rows] == ["yes"] * 12
    assert [row.line().split()[-1] for row in table.asked({})] == ["-"] * 12
    worse = full_run() | {"7b idle batch 1": {"idle": 0.06}, "decode bf16 32/32 batch 64 context 16384": {"share": 0.8}}
    assert [row.met for row in table.asked(worse)].count(False) == 2


def test_the_table_fits_what_a_terminal_keeps_and_names_failures() -> None:
    failed = [{"case": "7b W2 transformers", "values": {"message": "out of memory"}}]
    text = table.table(full_run(), failed, quick=False)
    assert len(text) < 11_000
    assert text.endswith("failed: 1\n  7b W2 transformers: out of memory")

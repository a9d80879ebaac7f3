"""The GPU benchmark runs from end to end where there is no GPU, and what it would say of one is what was measured.

Timings are not looked at. What is: that every part gives its figures, that nothing fails, that answers are
transformers', that a process that hangs or crashes is told and takes nobody along, and that the arithmetic behind the
figures (bytes, idle time, equal tokens) is right by other means.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.gpu import (
    asked,
    checkpoints,
    decode_kernel,
    jobs,
    mixed_kernel,
    plots,
    prefill_kernel,
    report,
    source_tree,
    timing,
)
from bench.gpu.occupancy import summarize
from bench.gpu.records import Record, Records
from bench.gpu.settings import Settings

RUN = source_tree.ROOT / "bench" / "gpu" / "run.py"


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, from a folder that is not the checkout's."""
    return subprocess.run(
        [sys.executable, str(RUN), *arguments], capture_output=True, text=True, timeout=300, cwd="/", check=False
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """A quick run of everything, and its JSON."""
    out = tmp_path_factory.mktemp("gpu-bench")
    done = benchmark("--device", "cpu", "--quick", "--out", str(out))
    assert sorted(path.name for path in out.iterdir() if path.suffix != ".png") == [
        "log.txt", "results.json", "table.txt", "tests.log",
    ], done.stdout + done.stderr  # fmt: skip
    assert done.stdout.endswith((out / "table.txt").read_text(encoding="utf-8"))
    return done, json.loads((out / "results.json").read_text(encoding="utf-8"))


def figures(results: dict[str, Any]) -> asked.Figures:
    """Of a JSON."""
    return asked.figures_of([Record(**record) for record in results["records"]])


class TestQuickRun:
    """Everything, with tiny shapes, on the CPU."""

    def test_nothing_fails_and_the_table_says_what_the_figures_are_worth(self, quick: Any) -> None:
        done, results = quick
        assert [r for r in results["records"] if r["kind"] == "failure"] == []
        assert done.returncode == 0
        assert done.stdout.rstrip().endswith("failed: nothing")
        assert "THE FIGURES MEAN NOTHING" in done.stdout

    @pytest.mark.parametrize(
        ("part", "least"),
        [("ceilings", 3), ("tests", 1), ("checkpoints", 1), ("kernels", 13), ("engine", 11), ("workloads", 9)],
    )
    def test_every_part_has_figures(self, quick: Any, part: str, least: int) -> None:
        _, results = quick
        found = [r for r in results["records"] if (r["kind"], r["part"]) == ("figure", part)]
        assert len(found) >= least

    def test_what_can_be_measured_without_a_gpu_is_measured(self, quick: Any) -> None:
        _, results = quick
        missing = [line["asked"] for line in results["asked"] if line["measured"] is None]
        assert all(label.startswith(("idle", "paged")) for label in missing), missing

    @pytest.mark.parametrize(("workload", "tokens"), [("W1", 4), ("W2", 6)])
    def test_answers_are_those_of_transformers(self, quick: Any, workload: str, tokens: int) -> None:
        found = figures(quick[1])
        ours, theirs = found[f"tiny {workload} ours"], asked.fastest_of_theirs(found, "tiny", workload)
        first, leading = report.equal_tokens(ours["leading"], theirs["leading"])
        assert (first, leading) == (1.0, tokens)

    def test_kernels_are_compared_before_they_are_timed(self, quick: Any) -> None:
        errors = [v["error"] for v in figures(quick[1]).values() if "error" in v]
        assert len(errors) >= 10
        assert all(0 <= error < 1e-4 for error in errors)


def test_a_machine_without_a_gpu_is_told_so_at_once(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        done = benchmark("--quick", "--out", str(tmp_path))  # tiny shapes on a GPU say nothing, and are refused
        assert done.returncode == 2
        assert "--device cpu and --quick go together" in done.stderr
        return
    done = benchmark("--out", str(tmp_path))
    assert done.returncode == 1
    assert "torch sees no NVIDIA GPU here" in done.stdout
    assert "failed: 1" in done.stdout


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def told(tmp_path: Path) -> Settings:
    """For processes of a test."""
    now = time.monotonic()
    return Settings("cpu", True, str(tmp_path / "results.jsonl"), str(tmp_path), str(tmp_path), now, now + 60)


def start_instead(monkeypatch: pytest.MonkeyPatch, programs: dict[str, str]) -> None:
    """Jobs run these programs, by their part."""

    def start(job: jobs.Job, settings: Settings, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as errors:
            return subprocess.Popen([sys.executable, "-c", programs[job.part]], stderr=errors, start_new_session=True)

    monkeypatch.setattr(jobs, "_start", start)
    monkeypatch.setattr(jobs, "_LEAST", 0.0)
    monkeypatch.setattr(jobs, "_GRACE", 0.1)


def test_a_process_that_hangs_and_one_that_crashes_are_told_and_the_others_go_on(
    told: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    start_instead(
        monkeypatch,
        {
            "hangs": "import time; time.sleep(60)",
            "crashes": "import os, sys; print('out of luck', file=sys.stderr); sys.stderr.flush(); os.abort()",
            "works": f"open({str(done)!r}, 'w')",
        },
    )
    work = (("module", "function"),)
    jobs.run_group([jobs.Job("hangs", 0.3, work), jobs.Job("crashes", 30, work), jobs.Job("works", 30, work)], told)
    failures = {r.part: r.values["message"] for r in told.records.read() if r.kind == "failure"}
    assert failures == {"hangs": "stopped at its time limit", "crashes": "ended with -6: out of luck"}
    assert done.exists()


def test_what_fails_within_a_process_is_told_with_its_traceback_and_the_rest_goes_on(told: Settings) -> None:
    jobs.run_pieces(told, ["nowhere measure", "ceilings measure"])
    records = told.records.read()
    (failure,) = [r for r in records if r.kind == "failure"]
    assert (failure.part, failure.case) == ("nowhere", "nowhere measure")
    assert "No module named 'bench.gpu.nowhere'" in failure.values["traceback"]
    assert "copy" in asked.figures_of(records)


def test_a_line_that_was_cut_off_is_not_read(tmp_path: Path) -> None:
    records = Records(tmp_path / "results.jsonl", time.monotonic())
    records.figure("kernels", "first", ms=1.5)
    with (tmp_path / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "figure", "part": "ker')
    assert records.read() == [Record("figure", "kernels", "first", {"ms": 1.5})]


@pytest.mark.parametrize("parts", [["ceilings"], ["kernels"], ["engine"], ["workloads"], list(jobs.PARTS)])
def test_what_others_need_is_made_before_them(parts: list[str]) -> None:
    groups = jobs.groups(parts, ["7b", "1b"], quick=False)
    order = [{piece[0] for job in group for piece in job.pieces} for group in groups]
    assert order[0] == {"ceilings"}
    models = [number for number, modules in enumerate(order) if modules & {"served", "baselines"}]
    assert bool(models) == bool({"engine", "workloads"} & set(parts))
    if models:
        assert "checkpoints" in set().union(*order[: models[0]])
    timed = [group for group in groups if not {"checkpoints", "tests"} & {job.part for job in group}]
    assert all(len(group) == 1 for group in timed)


def test_entry_points_are_found_from_source(tmp_path: Path) -> None:
    source_tree.write_metadata(tmp_path / "metadata")
    program = (
        "import json; from importlib.metadata import entry_points\n"
        "found = [(e.group, e.name, e.dist.name, str(e.dist.locate_file('')))"
        " for group in ('corellm.models', 'corellm.extensions') for e in entry_points(group=group)]\n"
        "import corellm; print(json.dumps([found, corellm.__file__]))"
    )
    environment = {**os.environ, "PYTHONPATH": source_tree.python_path(tmp_path / "metadata")}
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    found, where = json.loads(said.stdout)
    assert {folder for *_, folder in found} == {str(tmp_path / "metadata")}
    assert ["corellm.extensions", "corellm-kernels", "corellm", str(tmp_path / "metadata")] in found
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
    events = [{"name": f"kernel {length}", "ts": float(start), "dur": float(length)} for start, length in spans]
    found = summarize(events, steps=2)
    assert found["idle"] == pytest.approx(sum(gaps) / len(whole))
    assert found["idle_long_gaps"] == pytest.approx(sum(gap for gap in gaps if gap > 10) / len(whole))
    assert found["us_per_step"] == len(whole) / 2


def test_equal_tokens_counts_until_the_first_that_differs() -> None:
    assert report.equal_tokens([[1, 2, 3], [4, 5, 6]], [[1, 2, 9], [8, 5, 6]]) == (0.5, 1.0)


@pytest.mark.parametrize("recordable", [True, False])
def test_what_cannot_be_recorded_is_timed_with_the_host_and_marked(
    monkeypatch: pytest.MonkeyPatch, recordable: bool
) -> None:
    """By a device of our own, on which a call takes 5 ms, a replay 3 ms for each call in it."""
    clock, calls_in_graph = [0.0], [0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = clock[0]

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    class Graph:
        def replay(self) -> None:
            clock[0] += 3.0 * calls_in_graph[0]

    @contextmanager
    def recording(graph: Graph) -> Any:
        before = clock[0]
        yield
        calls_in_graph[0] = round((clock[0] - before) / 5.0)

    mode: list[Any] = [0]

    def call() -> None:
        if mode[0] == "error" and not recordable:
            raise RuntimeError("called a synchronizing CUDA operation")
        clock[0] += 5.0

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda wanted: mode.__setitem__(0, wanted))
    for name, fake in (("Event", Event), ("CUDAGraph", Graph), ("graph", recording), ("synchronize", lambda *_: None)):
        monkeypatch.setattr(torch.cuda, name, fake)
    found = timing.timed([call, call], torch.device("cuda"))
    assert (found.ms, found.recorded) == ((3.0, True) if recordable else (5.0, False))
    assert ("graph" in found.share_of(1.0)) is not recordable


# --- what a GPU's run would say ---------------------------------------------------------------------------------------


def full_run() -> list[Record]:
    """Figures under the names that full sizes have, all of them just good enough."""
    found: dict[str, dict[str, Any]] = {
        case.name: {"ms": 1.0, "share": 0.85} for case in decode_kernel.cases(jobs.DECODED, quick=False)
    }
    found |= {
        case.name: {"ms": 1.0, "ratio": 0.8, "tflop_per_s": 400.0, "flash_tflop_per_s": 500.0, "cudnn_ratio": 0.6}
        for case in prefill_kernel.cases(quick=False)
    }
    found |= {
        case.name: {"ms": 1.0, "one_launch": 0.7, "side_by_side": 1.1} for case in mixed_kernel.cases(quick=False)
    }
    for model, batch in itertools.product(("7b", "1b"), (1, 8, 64, 256)):
        found[f"{model} graphs decode batch {batch}"] = {"ms": 4.0, "floor_ms": 3.4, "share": 0.85}
        found[f"{model} eager decode batch {batch}"] = {"ms": 12.0, "floor_ms": 3.4, "share": 0.28}
        found[f"{model} idle batch {batch}"] = {"idle": 0.04, "idle_long_gaps": 0.01, "kernels_per_step": 300}
        leading = {"leading": [[1, 2], [3, 4]]}
        found[f"{model} W1 ours"] = {"tokens_per_s": 5000.0, **leading}
        found[f"{model} W1 transformers batch 64"] = {"tokens_per_s": 900.0, **leading}
        found[f"{model} W1 transformers batch 256"] = {"tokens_per_s": 1000.0, **leading}
        found[f"{model} W2 ours"] = {"tokens_per_s": 2000.0, **leading}
        found[f"{model} W2 transformers"] = {"tokens_per_s": 1000.0, **leading}
    return [Record("figure", "part", case, values) for case, values in found.items()]


def test_everything_asked_is_found_under_the_names_of_a_full_run() -> None:
    lines = asked.asked(["7b", "1b"])
    verdicts = [line.line(asked.figures_of(full_run())).split()[-1] for line in lines]
    assert verdicts == ["yes"] * len(lines)
    assert [line.found({}) for line in lines] == [None] * len(lines)


def test_the_table_of_a_full_run_fits_what_a_terminal_keeps() -> None:
    records = [*full_run(), Record("failure", "workloads", "7b W2 transformers", {"message": "out of memory"})]
    text = report.table(records, ["7b", "1b"], quick=False, seconds=500)
    assert len(text) < 11_000
    assert "workloads, 7b W2 transformers: out of memory" in text
    assert "7b W1: 5000 tokens/s, transformers 1000" in text


def test_plots_are_drawn_of_a_full_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a matplotlib that draws nothing, as it need not be installed."""
    saved: list[str] = []

    def subplots(rows: int, columns: int, **_: Any) -> tuple[Any, Any]:
        figure = MagicMock()
        figure.savefig.side_effect = lambda path, **_: saved.append(Path(path).name)
        panels = np.empty((rows, columns), dtype=object)
        for place in np.ndindex(rows, columns):
            panels[place] = MagicMock()
        return figure, panels

    library = MagicMock()
    library.pyplot.subplots = subplots
    monkeypatch.setitem(sys.modules, "matplotlib", library)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", library.pyplot)
    drawn = plots.draw(asked.figures_of(full_run()), ["7b", "1b"], tmp_path)
    assert drawn == saved == ["decode.png", "prefill.png", "engine.png"]

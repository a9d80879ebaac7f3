"""`corellm batch` as users run it: its statuses, and how it goes on after every kind of end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from corellm.cli import build_parser, main
from extensions.server.tests.batch.conftest import line, results, written
from extensions.server.tests.command import children, cmdline
from extensions.server.tests.conftest import chat, user
from tests.engine.process.test_process_faults import exists
from tests.fixtures import random_image, wait_until


def command(model: Path, folder: Path, *options: str) -> list[str]:
    """The command on the files of a folder."""
    return [
        "batch", "-i", str(folder / "requests.jsonl"), "-o", str(folder / "results.jsonl"), "--model", str(model),
        "--served-model-name", "tiny", "--dtype", "float32", "--max-num-seqs", "4", *options,
    ]  # fmt: skip


@contextmanager
def started(model: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "corellm", *command(model, folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def num_lines(folder: Path) -> int:
    path = folder / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def requests(num: int, **fields: Any) -> Iterator[str]:
    return (line(f"r{i}", chat(user(f"number {i}"), ignore_eos=True, **fields)) for i in range(num))


def test_row_33_bad_lines_and_a_kill(tiny_llava: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed in the middle, by SIGKILL: finished lines are kept, none is done twice, the order is the input's.

    Bad lines are told by their numbers, and the exit status is 1.
    """
    asked = list(requests(60, max_tokens=60))
    asked[20], asked[40] = "not json", line("r7", {})
    written(tmp_path / "requests.jsonl", asked)
    with started(tiny_llava, tmp_path) as process:
        wait_until(lambda: num_lines(tmp_path) >= 5, 300)
        others = children(process.pid)
        process.kill()
    kept = (tmp_path / "results.jsonl").read_bytes()
    kept = kept[: kept.rindex(b"\n") + 1]
    num_kept = kept.count(b"\n")
    assert num_kept < 60
    wait_until(lambda: not any(map(exists, others)))
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"id":"batch_req_12')  # what a kill within a write leaves
    assert main(command(tiny_llava, tmp_path)) == 1
    told = capsys.readouterr()
    assert "line 41: custom_id 'r7'" in told.err
    assert f"60 of 60 done ({num_kept} of " in told.out
    assert "2 x invalid line" in told.out
    assert (tmp_path / "results.jsonl").read_bytes().startswith(kept)
    got = results(tmp_path / "results.jsonl")
    assert [result["custom_id"] for result in got] == [None if i in (20, 40) else f"r{i}" for i in range(60)]
    assert got[20]["error"]["code"] == "invalid_line"
    assert got[20]["error"]["message"].startswith("line 21: ")
    lengths = {result["response"]["body"]["usage"]["completion_tokens"] for result in got if result["response"]}
    assert lengths == {60}


def test_stopped_by_ctrl_c(tiny_llava: Path, tmp_path: Path) -> None:
    """It says how to go on, leaves whole lines and no process."""
    written(tmp_path / "requests.jsonl", requests(200, max_tokens=100))
    with started(tiny_llava, tmp_path) as process:
        wait_until(lambda: num_lines(tmp_path) >= 2, 300)
        others = children(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
        assert process.returncode == 130
    assert "Traceback" not in err
    assert "same command" in err
    num = len(results(tmp_path / "results.jsonl"))
    assert out.startswith(f"requests   {num} of 200 done")
    wait_until(lambda: not any(map(exists, others)))


def test_an_engine_that_dies(tiny_llava: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 1, and what was in flight has no results."""
    written(tmp_path / "requests.jsonl", requests(200, max_tokens=100))
    before = children(os.getpid())

    def kill() -> None:
        wait_until(lambda: num_lines(tmp_path) >= 2, 300)
        (engine,) = (pid for pid in children(os.getpid()) - before if b"engine_main" in cmdline(pid))
        os.kill(engine, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        assert main(command(tiny_llava, tmp_path)) == 1
        killing.result()
    told = capsys.readouterr().err
    assert "same command" in told
    assert "corellm: error: the engine" in told
    assert all(result["response"]["status_code"] == 200 for result in results(tmp_path / "results.jsonl"))


def test_a_whole_batch(tiny_llava: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With images and options from a server's file: status 0. The same command again does nothing, without a model."""
    random_image(40, 30, 7).save(tmp_path / "image.png")
    (tmp_path / "server.yaml").write_text(f"port: 9000\napi_key: secret\nallowed_local_media_path: {tmp_path}\n")
    asked = (line(f"r{i}", chat(user({"image": "image.png"}, f"what {i}?"))) for i in range(3))
    written(tmp_path / "requests.jsonl", asked)
    arguments = command(tiny_llava, tmp_path, "--config", str(tmp_path / "server.yaml"))
    assert main(arguments) == 0
    rows = capsys.readouterr().out.splitlines()
    assert "3 of 3 done" in rows[0]
    tokens = [result["response"]["body"]["usage"] for result in results(tmp_path / "results.jsonl")]
    num_prompt, num_output = (sum(usage[key] for usage in tokens) for key in ("prompt_tokens", "completion_tokens"))
    assert rows[1].startswith(f"tokens     {num_prompt} of prompts, {num_output} of ")
    arguments[arguments.index(str(tiny_llava))] = "/nowhere"
    assert main(arguments) == 0
    assert "3 of 3 done (3 of" in capsys.readouterr().out
    written(tmp_path / "requests.jsonl", [])
    (tmp_path / "results.jsonl").unlink()
    assert main(arguments) == 0
    assert "0 of 0 done" in capsys.readouterr().out


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and one line, before a model is loaded and without a change to the files."""
    good, other = tmp_path / "requests.jsonl", tmp_path / "other.jsonl"
    written(good, [line("a", {})])
    written(other, [json.dumps({"id": "batch_req_1", "custom_id": "b", "response": None, "error": {}})])
    for source, target, options, message in (
        (tmp_path / "absent", tmp_path / "out", (), f"input {tmp_path / 'absent'}"),
        (good, tmp_path, (), f"output {tmp_path} "),
        (good, good, (), f"line 1 of the output {good}"),
        (good, other, (), f"line 1 of the output {other}"),
        (good, tmp_path / "out", ("--max-num-seqs", "0"), "max_num_seqs must be"),
        (good, tmp_path / "out", ("--max-n", "0"), "max_n must be"),
        (good, tmp_path / "out", ("--config", "/nowhere"), "No such file"),
        (good, tmp_path / "out", ("--engine-hang-timeout", "5"), "engine_hang_timeout needs data_parallel_size"),
        (tmp_path / "rows.csv", tmp_path / "out", (), "is a table, which --ray reads"),
    ):
        assert main(["batch", "-i", str(source), "-o", str(target), "--model", "demo", *options]) == 2
        told = capsys.readouterr().err
        assert told.startswith("corellm batch: error: ")
        assert message in told
        assert good.read_text() == line("a", {}) + "\n"
    assert main(["batch", "-i", str(good), "-o", str(tmp_path / "out")]) == 2
    assert "which model?" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(["batch", "-i", str(good), "--model", "demo"])
    build_parser().parse_args(["batch", "-i", "x", "-o", "x", "--enable-mm-embeds", "--max-window-size", "9"])
    with pytest.raises(SystemExit, match="2"):  # an option of a server's own
        main(["batch", "-i", str(good), "-o", "x", "--model", "demo", "--port", "1"])

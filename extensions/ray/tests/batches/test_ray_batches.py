"""Batches on Ray: exactly one result for each request, whatever process ends; and the model in pipelines."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from corellm import LLM, SamplingParams
from corellm.cli import main
from corellm.errors import ConfigError
from corellm_ray import map_batches
from corellm_ray.batches.done import Done
from corellm_ray.batches.offer import RayBatchOptions
from corellm_ray.batches.table import TableFile
from corellm_ray.cluster import ray
from corellm_server.batch.input_file import InputFile
from corellm_server.batch.output_file import OutputFile
from corellm_server.batch.results import of_wrong_line
from extensions.server.tests.conftest import data_url
from tests.fixtures import random_image, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Ray leaves processes of a cluster that it has ended to themselves, and Python warns of them."""
ENGINE: dict[str, Any] = {"dtype": "float32", "block_size": 8, "max_num_seqs": 4}
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
NAMES = [f"{seed}.png" for seed in range(3)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a local cluster."""
    if not ray.is_initialized():
        ray.init(
            "local", num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR",
        )  # fmt: skip
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images."""
    folder = tmp_path_factory.mktemp("images")
    for seed, name in enumerate(NAMES):
        random_image(40, 30, seed).save(folder / name)
    return folder


def conversation(number: int, url: Any) -> list[dict[str, Any]]:
    """One about an image."""
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": f"what is {number}?"}]
    return [{"role": "user", "content": content}]


def write_requests(file: Path, count: int) -> None:
    """So many lines about images, and one in their midst that is wrong."""
    lines = []
    for number in range(count):
        body = {"model": "tiny", "messages": conversation(number, data_url(number % 3)), **GREEDY}
        line = {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line))
    lines.insert(count // 2, '{"no": "request"}')
    file.write_text("\n".join(lines))


def command(folder: Path, model: Path, images: Path, address: str, requests: str = "requests.jsonl") -> list[str]:
    """What does them on the cluster."""
    config = {"model": str(model), "served-model-name": "tiny", "allowed-local-media-path": str(images), **ENGINE}
    (folder / "batch.yaml").write_text("".join(f"{name}: {value}\n" for name, value in config.items()))
    return [
        "batch", "-i", str(folder / requests), "-o", str(folder / "results.jsonl"), "--config",
        str(folder / "batch.yaml"), "--ray", "--ray-address", address,
    ]  # fmt: skip


def num_results(folder: Path) -> int:
    """Whole results that were written."""
    file = folder / "results.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def workers() -> list[int]:
    """Processes of workers that have a model."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if line.startswith(b"ray::") and b"MapWorker" in line:
            found.append(int(process.name))
    return found


def run_and_kill(words: list[str], folder: Path, num_kills: int) -> None:
    """Kill the workers so many times, then the command, each after some more results of theirs."""
    with subprocess.Popen([sys.executable, "-m", "corellm", *words], stdout=subprocess.DEVNULL) as driver:
        try:
            wait_until(lambda: num_results(folder) > 1)  # one comes without a worker
            for _ in range(num_kills):
                before, victims = num_results(folder), workers()
                assert victims
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
                wait_until(lambda: num_results(folder) > before)  # noqa: B023
        finally:
            driver.kill()


def assert_complete(folder: Path, count: int, model: Path) -> None:
    """Each line has exactly one result, that of a model which runs alone."""
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    named = {result["custom_id"]: result for result in results}
    assert len(results) == len(named) == count + 1
    assert named.keys() == {None, *map(str, range(count))}
    with LLM(str(model), **ENGINE) as llm:
        asked = [conversation(number, data_url(number % 3)) for number in range(count)]
        outputs = llm.chat(asked, SamplingParams(**GREEDY), use_tqdm=False)  # type: ignore[arg-type]
    for number, output in enumerate(outputs):
        body = named[str(number)]["response"]["body"]
        assert body["choices"][0]["message"]["content"] == output.outputs[0].text
    assert named[None]["error"]["code"] == "invalid_line"


def test_one_result_for_each_line_though_a_worker_and_the_driver_are_killed(
    cluster: str, tiny_llava: Path, images: Path, tmp_path: Path
) -> None:
    """The same command goes on, and then has nothing to do."""
    write_requests(tmp_path / "requests.jsonl", 56)
    words = command(tmp_path, tiny_llava, images, cluster)
    run_and_kill(words, tmp_path, 1)
    wait_until(lambda: not workers())
    assert num_results(tmp_path) < 57
    assert main(words) == 1  # one line is wrong
    assert num_results(tmp_path) == 57
    assert_complete(tmp_path, 56, tiny_llava)
    assert main(words) == 1
    assert num_results(tmp_path) == 57


@pytest.mark.full
def test_500_lines_two_kills_of_a_worker_and_one_of_the_driver(
    cluster: str, tiny_llava: Path, images: Path, tmp_path: Path
) -> None:
    """500 results, none twice."""
    write_requests(tmp_path / "requests.jsonl", 500)
    words = command(tmp_path, tiny_llava, images, cluster)
    began = time.monotonic()
    run_and_kill(words, tmp_path, 2)
    assert main(words) == 1
    print(f"500 lines in {time.monotonic() - began:.0f} s")
    assert_complete(tmp_path, 500, tiny_llava)


def test_a_table_with_images_in_order(cluster: str, tiny_llava: Path, images: Path, tmp_path: Path) -> None:
    """Parquet, with images as bytes or names of files; results are in the order of rows."""
    stream = io.BytesIO()
    random_image(40, 30, 0).save(stream, "PNG")
    table = {"custom_id": [f"row {n}" for n in range(34)], "question": ["what?"] * 34}
    pictures = pyarrow.array([stream.getvalue()] * 34)
    pyarrow.parquet.write_table(pyarrow.table({**table, "image": pictures}), tmp_path / "rows.parquet")
    words = command(tmp_path, tiny_llava, images, cluster, "rows.parquet")
    assert main([*words, "--keep-order", "--request-fields", json.dumps(GREEDY)]) == 0
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [result["custom_id"] for result in results] == table["custom_id"]
    texts = {result["response"]["body"]["choices"][0]["message"]["content"] for result in results}
    assert len(texts) == 1


def test_a_model_in_a_pipeline(cluster: str, tiny_llava: Path, images: Path) -> None:
    """Columns stay; outputs are those of `LLM`; a wrong prompt is told in its row."""
    rows = [{"number": n, "file": str(images / NAMES[n % 3])} for n in range(5)]
    params = SamplingParams(temperature=0, max_tokens=8)

    def prompt_of(row: dict[str, Any]) -> Any:
        if row["number"] == 3:
            return "<image> none is given"
        return {"prompt": f"USER: <image> {row['number']}? ASSISTANT:", "multi_modal_data": {"image": row["file"]}}

    answered = map_batches(
        ray.data.from_items(rows), str(tiny_llava), prompt=prompt_of, sampling_params=params, engine_args=ENGINE,
        batch_size=3,
    )  # fmt: skip
    found = {row["number"]: row for row in answered.take_all()}
    with LLM(str(tiny_llava), **ENGINE) as llm:
        wanted = llm.generate([prompt_of(row) for row in rows if row["number"] != 3], params, use_tqdm=False)
    assert [found[n]["output"] for n in (0, 1, 2, 4)] == [output.outputs[0].text for output in wanted]
    assert [bool(found[n]["output_error"]) for n in range(5)] == [False, False, False, True, False]
    assert found[4]["file"] == rows[4]["file"]
    with pytest.raises(ConfigError, match="no column 'prompt'; it has number, file"):
        map_batches(ray.data.from_items(rows), str(tiny_llava))


def test_rows_that_are_no_requests_say_why(tmp_path: Path) -> None:
    """A question that is none, an image that is none, a name that came before."""
    file = tmp_path / "rows.csv"
    file.write_text("custom_id,question,image\na,what?,x.png\na,again?,\nb,,\nc,so?,\n")
    with TableFile(str(file), "m", "question", "image", {"temperature": 0}) as table:
        found = list(table.requests())
    assert [request.wrong for request in found] == [None, "custom_id 'a' is that of an earlier row", None, None]
    body = json.loads(found[0].body)
    assert body["temperature"] == 0
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url", "text"]
    with pytest.raises(ConfigError, match="no column 'text'; it has custom_id, question, image"):
        TableFile(str(file), "m", "text", None, {})
    with pytest.raises(ConfigError, match="cannot read the input"):
        TableFile(str(tmp_path / "none.parquet"), "m", "question", None, {})


def test_an_output_of_another_input_is_refused(tmp_path: Path) -> None:
    """So is one with two results of a request: neither is changed."""
    write_requests(tmp_path / "requests.jsonl", 3)
    write_requests(tmp_path / "others.jsonl", 5)
    with InputFile(tmp_path / "others.jsonl", 1 << 20) as others:
        lines = [of_wrong_line(request).line for request in others.requests()]
    output = tmp_path / "results.jsonl"
    for content, told in ((lines, "results of another input"), ([lines[0], lines[0]], "two results")):
        output.write_bytes(b"".join(content))
        with (
            InputFile(tmp_path / "requests.jsonl", 1 << 20) as requests,
            OutputFile(output) as opened,
            pytest.raises(ConfigError, match=told),
        ):
            Done(requests, opened)
        assert output.read_bytes() == b"".join(content)


@pytest.mark.parametrize(
    "wrong", [{"ray_workers": 0}, {"ray_worker_cpus": 0}, {"ray_worker_gpus": -1},
              {"object_store_memory": 1}],
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    """By name, before Ray is started."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RayBatchOptions(**wrong)

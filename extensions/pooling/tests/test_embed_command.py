"""`corellm embed`: its cosines are those of the engine's embeddings, its files hold them, and mistakes cost one row."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from corellm import LLM
from corellm.cli import main
from corellm_pooling.similarity.entries import Embedded, Entry
from corellm_pooling.similarity.matrix import compare
from corellm_pooling.similarity.plot import save_plot
from tests.fixtures import random_image

TEXTS = ["a cat", "seven green dogs"]
QUESTION = "What is it?"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two images, and of what is none."""
    folder = tmp_path / "images"
    folder.mkdir()
    for seed, name in enumerate(("b.PNG", "a.png")):
        random_image(40, 30, seed).save(folder / name)
    (folder / "notes.txt").write_text("not an image")
    return folder


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    path = tmp_path / "captions.txt"
    path.write_text(f"\ufeff{TEXTS[0]}\n\n  {TEXTS[1]}  \n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def make_vectors(tiny_llava: Path) -> Any:
    """Embeddings of prompts, written out as the family's conversation."""

    def make(texts: list[str], files: list[Path], question: str = "") -> tuple[Any, Any]:
        asked = f"\n{question}" if question else ""
        prompts: list[Any] = [f"USER: {text}{asked} ASSISTANT:" for text in texts]
        prompts += [
            {"prompt": f"USER: <image>\n{question} ASSISTANT:", "multi_modal_data": {"image": str(file)}}
            for file in files
        ]
        with LLM(tiny_llava, convert="embed") as llm:
            vectors = np.array([output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)])
        return vectors[: len(texts)], vectors[len(texts) :]

    return make


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main(["embed", *map(str, argv)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def rows(printed: str) -> list[list[str]]:
    """The words of the table's rows."""
    return [line.split() for line in printed.partition("\n\n")[2].splitlines()[1:]]


@pytest.mark.parametrize("center", [False, True])
def test_the_table(
    center: bool, capsys: pytest.CaptureFixture[str], tiny_llava: Path, images: Path, captions: Path, make_vectors: Any
) -> None:
    """Every cosine, the best of each row marked and named; images are sorted by name."""
    options = ["--instruction", QUESTION, *["--center"] * center]
    status, out, err = run(capsys, tiny_llava, "--images", images, "--texts", captions, *options)
    assert status == 0, err
    assert out.startswith("  1  a cat\n  2  seven green dogs\n\n")
    assert " \n" not in out
    texts, files = make_vectors(TEXTS, [images / "a.png", images / "b.PNG"], QUESTION)
    if center:
        texts, files = texts - texts.mean(axis=0), files - files.mean(axis=0)
    cosines = (files @ texts.T) / np.linalg.norm(files, axis=1)[:, None] / np.linalg.norm(texts, axis=1)
    for row, name, expected in zip(rows(out), ("a.png", "b.PNG"), cosines, strict=True):
        best = int(expected.argmax())
        assert row[0] == name
        assert row[1 + best].startswith("*")
        assert [float(cell.strip("*")) for cell in row[1:3]] == pytest.approx(expected, abs=6e-4)
        assert " ".join(row[3:]).startswith(f"{TEXTS[best]} (")


def test_json_lines(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, images: Path, make_vectors: Any,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """One object per file and text on standard output and in a file; texts may come from standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXTS[0]}\n"))
    file, written = images / "a.png", tmp_path / "out.jsonl"
    status, out, err = run(
        capsys, tiny_llava, TEXTS[1], file, "--texts", "-", "--format", "jsonl", "-o", written
    )  # fmt: skip
    assert status == 0
    assert err.endswith(f" 3 embeddings to {written}\n")  # after a progress bar, if it took long
    first, *others = map(json.loads, out.splitlines())
    texts, files = make_vectors(TEXTS, [file])
    assert first["image"] == str(file)
    assert [other["text"] for other in others] == TEXTS
    np.testing.assert_allclose([other["embedding"] for other in others], texts, atol=1e-7)
    np.testing.assert_allclose(first["embedding"], files[0], atol=1e-7)
    assert written.read_text(encoding="utf-8") == out


def test_folders_and_standard_input(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, images: Path, make_vectors: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A folder gives each of its images, and - the one that is piped in."""
    files = [images / "a.png", images / "b.PNG"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(files[1].read_bytes())))
    status, out, _ = run(capsys, tiny_llava, images, "-", "--format", "jsonl")
    assert status == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["image"] for one in found] == [*map(str, files), "-"]
    _, expected = make_vectors([], files)
    np.testing.assert_allclose([one["embedding"] for one in found], expected[[0, 1, 1]], atol=1e-7)


def test_safetensors(capsys: pytest.CaptureFixture[str], tiny_llava: Path, images: Path, tmp_path: Path) -> None:
    """Tensors of what was embedded, with their names; nothing is printed where there is nothing to compare."""
    path = tmp_path / "out.safetensors"
    (images / "c.png").write_bytes(b"no image")
    status, out, err = run(capsys, tiny_llava, "--images", images, "-o", path, "--dimensions", 8)
    assert (status, out) == (1, "")
    assert f" 2 embeddings to {path}\n" in err
    with safe_open(path, "np") as file:
        assert list(file.keys()) == ["media"]
        assert file.get_tensor("media").shape == (2, 8)
        assert json.loads(file.metadata()["media"]) == [str(images / "a.png"), str(images / "b.PNG")]


def test_raw_text_is_the_prompt(capsys: pytest.CaptureFixture[str], tiny_llava: Path) -> None:
    """`--raw` embeds the text alone, as `LLM.embed` does."""
    status, out, _ = run(capsys, tiny_llava, TEXTS[0], "--raw", "--format", "jsonl")
    with LLM(tiny_llava, convert="embed") as llm:
        (expected,) = llm.embed(TEXTS[0], use_tqdm=False)
    assert status == 0
    np.testing.assert_allclose(json.loads(out)["embedding"], expected.outputs.embedding, atol=1e-7)


def test_a_mistake_costs_one_row(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, images: Path, captions: Path, tmp_path: Path
) -> None:
    """A broken image and a text that does not fit are reported where they stand; the rest is done, and drawn."""
    (images / "broken.png").write_bytes((images / "a.png").read_bytes()[:200])
    captions.write_text(f"{TEXTS[0]}\n{'word ' * 5000}\n")
    plot = tmp_path / "plot.png"
    status, out, err = run(capsys, tiny_llava, "--images", images, "--texts", captions, "--plot", plot)
    assert status == 1
    assert err.endswith(f"{plot}\ncorellm embed: 2 of 5 failed\n")
    good, _, broken = rows(out)
    assert good[1].startswith("*")
    assert good[2] == "-"
    assert broken[:4] == ["broken.png", "-", "-", "failed:"]
    assert "word…  failed: " in out
    with Image.open(plot) as image:
        image.load()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to embed"),
        (["a text"], "give images"),
        (["a.png"], "give texts"),
        (["nowhere.png", "a text"], "no such file: 'nowhere.png'"),
        (["--images", "nowhere"], "--images nowhere: no such folder"),
        (["--images", "a.png"], "--images a.png: a file"),
        (["--images", "empty"], "the folder 'empty' has no image files (.avif, .bmp"),
        (["empty", "a text"], "images, videos"),
        (["-", "a text"], "standard input"),
        (
            ["a.png", "--texts", "nowhere.txt"],
            "--texts nowhere.txt: No such file",
        ),
        (["a.png", "--texts", "empty.txt"], "one per line"),
        (["a.png", "--texts", "a.png"], "in UTF-8"),
        (["a.png", "text", "--center"], "--center"),
        (["a.png", "text", "--plot", "x.gif"], "--plot writes .png, .svg or .pdf, got 'x.gif'"),
        (["a.png", "text", "--plot", "nowhere/x.png"], "nowhere/x.png: "),
        (["a.png", "text", "-o", "x.csv"], "-o writes .jsonl or .safetensors, got 'x.csv'"),
        (["a.png", "text", "-o", "nowhere/x.jsonl"], "cannot write nowhere/x.jsonl"),
    ],
)
def test_wrong_input_is_refused_before_loading(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line: there is no such model, and that is not what is reported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    random_image(8, 8, 0).save("a.png")
    Path("empty").mkdir()
    Path("empty.txt").write_text(" \n")
    status, out, err = run(capsys, "no/such-model", *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("corellm: error: ")
    assert err.count("\n") == 1
    assert said in err


def test_matplotlib_is_missing(
    capsys: pytest.CaptureFixture[str], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that installs it is named before a model is loaded."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = run(capsys, "no/such-model", images / "a.png", "text", "--plot", "x.png")
    assert status == 1
    assert "pip install matplotlib" in err


def test_a_model_that_classifies(capsys: pytest.CaptureFixture[str], tiny_llava: Path, images: Path) -> None:
    """A model that was made for something else says how to load it."""
    status, out, err = run(capsys, tiny_llava, images / "a.png", "text", "--runner", "generate")
    assert (status, out) == (1, "")
    assert "no task 'embed'" in err


def matrix_of(num_rows: int, num_columns: int, *, failed: set[int], center: bool = False) -> Any:
    vectors = np.random.default_rng(0).normal(size=(num_rows + num_columns, 4)).astype(np.float32)
    entries = [
        Embedded(Entry("text", "", f"name_{{{i}}} $x$ " * 9), None if i in failed else vector, "no" * (i in failed))
        for i, vector in enumerate(vectors)
    ]
    return compare(entries[:num_rows], entries[num_rows:], center=center)


@pytest.mark.parametrize(
    ("num_rows", "num_columns", "failed"),
    [(1, 1, set()), (2, 3, {0, 3}), (2, 2, {0, 1}), (200, 3, {7}), (2, 100, set())],
)
def test_every_size_is_drawn(num_rows: int, num_columns: int, failed: set[int], tmp_path: Path) -> None:
    """One cell, many of them, failed rows and columns, nothing but failures: a drawing, without a warning."""
    path = tmp_path / "plot.png"
    save_plot(matrix_of(num_rows, num_columns, failed=failed), "50 $ title", Image.open, str(path))
    with Image.open(path) as image:
        assert min(image.size) > 50
        assert max(image.size) < 5000


def test_what_failed_is_not_in_the_mean() -> None:
    """Centred cosines of the others are those without it."""
    whole, part = matrix_of(4, 3, failed={3}, center=True), matrix_of(4, 3, failed=set())
    others = compare(part.rows[:3], part.columns, center=True)
    np.testing.assert_allclose(whole.cosines[:3], others.cosines, atol=1e-6)
    assert np.isnan(whole.cosines[3]).all()
    assert whole.best(3) is None


def test_odd_names(capsys: pytest.CaptureFixture[str], tiny_llava: Path, tmp_path: Path) -> None:
    """No name moves the cursor, breaks a row or costs the files; those that are not UTF-8 come back."""
    folder, captions = tmp_path / "images", tmp_path / "captions.txt"
    folder.mkdir()
    odd = sorted([folder / "a\nb.png", folder / "\x1b[2J.png", folder / os.fsdecode(b"\xff.png")])
    for path in odd:
        random_image(40, 30, 1).save(path)
    captions.write_text("\x1b[31m red\0\nblue\n", encoding="utf-8")
    given = (tiny_llava, "--images", folder, "--texts", captions)
    status, out, err = run(capsys, *given, "--plot", tmp_path / "all.png", "-o", tmp_path / "all.jsonl")
    assert status == 0, err
    assert "\x1b" not in out
    assert [row[0] for row in rows(out)] == [r"\x1b[2J.png", r"a\nb.png", r"\udcff.png"]
    written = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text("utf-8").splitlines()]
    assert [Path(one["image"]) for one in written[:3]] == odd
    assert run(capsys, *given, "-o", tmp_path / "all.safetensors")[0] == 0
    with safe_open(tmp_path / "all.safetensors", "np") as file:
        assert json.loads(file.metadata()["media"]) == [str(path) for path in odd]

"""GGUF files in parts, and those that the hub has under a name and a type."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import transformers
from gguf.constants import GGMLQuantizationType as Kind
from huggingface_hub import constants

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, MissingExtraError
from corellm_quantization.gguf import hub
from corellm_quantization.gguf.checkpoint import files_of, make_checkpoint
from corellm_quantization.gguf.hub import download_gguf
from extensions.quantization.tests.gguf_files import write_llava
from extensions.quantization.tests.oracle import greedy
from tests.fixtures import random_image

PROMPT, IMAGE = "USER: <image>\nWhat shape? ASSISTANT:", random_image(60, 50, 1)
TYPES = (
    "tiny-Q8_0-00001-of-00004.gguf",
    "tiny-Q4_K_M.gguf",
    "tiny-Q4_K_S.gguf",
    "bf16/tiny-BF16.gguf",
    "tiny-f16.gguf",
)
TOWERS = ("mmproj-tiny-BF16.gguf", "mmproj-tiny-F16.gguf", "mmproj-tiny-Q8_0.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for what is made of files, for the whole run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "gguf-cache"))


@pytest.fixture(scope="module")
def parts(tiny_llava: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path, Any]:
    """The parts of a LLaVA's text model, its encoder's file, and the model of transformers with the same weights."""
    folder = tmp_path_factory.mktemp("parts")
    model = write_llava(folder, tiny_llava, Kind.Q8_0, part=8)
    return sorted(folder.glob("model-*.gguf")), folder / "mmproj-model.gguf", model


@pytest.fixture
def repository(parts: tuple[list[Path], Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot of `owner/tiny` in the hub's cache, which is what there is of the hub."""
    files, tower, _ = parts
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--owner--tiny"
    snapshot = home / "snapshots" / ("a" * 40)
    for folder in (home / "refs", home / "blobs", snapshot):
        folder.mkdir(parents=True)
    (home / "refs" / "main").write_text("a" * 40)
    names = [file.name.replace("model-", "tiny-Q8_0-") for file in files]
    for number, (name, file) in enumerate(zip([*names, TOWERS[1]], [*files, tower], strict=True)):
        shutil.copy(file, home / "blobs" / f"{number:064}")
        (snapshot / name).symlink_to(home / "blobs" / f"{number:064}")
    return snapshot


def test_a_model_of_the_hub_in_parts_is_the_model(
    repository: Path, parts: tuple[list[Path], Path, Any], tiny_llava: Path
) -> None:
    """Also its output layer, which is in another part than what transformers reads."""
    files, _, model = parts
    assert len(files) > 2
    wanted, logprobs = greedy(model, transformers.AutoProcessor.from_pretrained(tiny_llava)(
        images=IMAGE, text=PROMPT, return_tensors="pt"
    ))  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True)
    with LLM("owner/tiny:q8_0", dtype="float32") as llm:
        request = {"prompt": PROMPT, "multi_modal_data": {"image": IMAGE}}
        output = llm.generate(request, params, use_tqdm=False)[0].outputs[0]
    assert output.token_ids == wanted
    for found, expected in zip(output.logprobs, logprobs, strict=True):
        assert all(abs(entry.logprob - expected[token].item()) < 2e-3 for token, entry in found.items())


def test_any_part_names_the_file_and_all_must_be_there(parts: tuple[list[Path], Path, Any], tmp_path: Path) -> None:
    files, _, _ = parts
    made = make_checkpoint(files[0], None)
    assert make_checkpoint(files[-1], None) == made == make_checkpoint(files[0].parent, None)
    for file in files[:-1]:
        shutil.copy(file, tmp_path)
    with pytest.raises(CheckpointError, match=f"is one of {len(files)} parts, and {files[-1].name} is not beside it"):
        make_checkpoint(tmp_path / files[0].name, None)
    shutil.copy(files[1], tmp_path / files[-1].name)
    with pytest.raises(CheckpointError, match=f"{files[-1].name} is not part {len(files)} of {len(files)} of"):
        make_checkpoint(tmp_path, None)
    shutil.copy(files[0], tmp_path / "alone.gguf")
    with pytest.raises(CheckpointError, match=rf"is one of {len(files)} parts, .*under their published names"):
        make_checkpoint(tmp_path / "alone.gguf", None)


@pytest.mark.parametrize(
    ("wanted", "mmproj", "files", "tower"),
    [
        ("Q8_0", None, [f"tiny-Q8_0-0000{n}-of-00004.gguf" for n in range(1, 5)], "mmproj-tiny-Q8_0.gguf"),
        ("q4_k_m", None, ["tiny-Q4_K_M.gguf"], "mmproj-tiny-F16.gguf"),
        ("BF16", "none", ["bf16/tiny-BF16.gguf"], None),
        ("F16", "mmproj-tiny-BF16.gguf", ["tiny-f16.gguf"], "mmproj-tiny-BF16.gguf"),
        ("tiny-Q4_K_S.gguf", "/here/own.gguf", ["tiny-Q4_K_S.gguf"], None),
    ],
)
def test_only_what_is_meant_is_downloaded(
    wanted: str,
    mmproj: str | None,
    files: Sequence[str],
    tower: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [*TYPES, *(f"tiny-Q8_0-0000{n}-of-00004.gguf" for n in range(2, 5)), *TOWERS, "config.json", "README.md"]
    asked = []
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, name, revision: names)
    monkeypatch.setattr(hub, "download", lambda *given, what: asked.append(given) or tmp_path)
    first, encoder = download_gguf(f"owner/tiny:{wanted}", "v1", mmproj)
    assert asked == [("owner/tiny", "v1", [*files, *([tower] if tower else [])])]
    assert (first, encoder) == (tmp_path / files[0], str(tmp_path / tower) if tower else mmproj)


def test_a_hub_that_does_not_answer_leaves_what_is_in_the_cache(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it said then that files are not there: the hub may have them."""

    class ConnectError(Exception):
        """As of the hub's client: no OSError, and none of the hub's own."""

    def refused(*given: Any, **more: Any) -> None:
        raise ConnectError

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", refused)
    first, tower = download_gguf("owner/tiny:q8_0", None, None)
    assert first == min(repository.glob("tiny-*.gguf"))
    assert tower == str(repository / TOWERS[1])
    with pytest.raises(CheckpointError, match=r"no GGUF files .* the hub did not say what it has \(ConnectError\)"):
        download_gguf("owner/tiny:Q4_K_M", None, None)
    first.unlink()
    with pytest.raises(CheckpointError, match=r"is not beside it.* the hub did not say .*your access token"):
        download_gguf("owner/tiny:q8_0", None, None)


def test_a_file_of_any_name_may_be_meant_and_a_path_is_no_hub_name(repository: Path) -> None:
    for name in ("a b[1].gguf", "more/(new) Ümlaut.gguf"):
        with pytest.raises(CheckpointError, match="no GGUF files have this type"):
            LLM(f"owner/tiny:{name}")
    for path in ("./tiny:Q8_0", "../tiny:Q8_0"):
        with pytest.raises(CheckpointError, match="no such directory or file"):
            LLM(path)


def test_a_file_in_thousands_of_parts_is_found_at_once() -> None:
    names = [Path(f"tiny-{number:05}-of-05000.gguf") for number in range(1, 5001)]
    asked = []

    def is_there(name: Path) -> bool:
        asked.append(name)
        return True

    assert files_of([*names, Path("other.gguf")], is_there) == [[Path("other.gguf")], names]
    assert asked == names


def test_a_type_that_is_not_there_is_told_with_those_that_are(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=r"no GGUF files have this type; .*: tiny-Q8_0-00001-of-"):
        LLM("owner/tiny:Q4_K_M")
    with pytest.raises(CheckpointError, match=r"name one or its type behind a colon: owner/tiny:Q8_0"):
        LLM("owner/tiny")
    with pytest.raises(CheckpointError, match=r"no model 'owner/other': .* the hub did not give it"):
        LLM("owner/other:Q4_K_M")
    monkeypatch.setattr("corellm.loading.checkpoint.first_result", lambda *given, **more: None)
    with pytest.raises(MissingExtraError, match="GGUF files need"):
        LLM("owner/tiny:Q8_0")

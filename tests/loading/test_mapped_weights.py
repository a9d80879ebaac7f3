"""Memory of mapped weights is given back, and nothing that was written to is lost."""

from __future__ import annotations

import ctypes
import hashlib
import io
import mmap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from corellm.modelling.published import parameters_and_buffers
from corellm.modelling.weights import fill_weights
from corellm.system import mapped_weights
from corellm.system.mapped_weights import _clean_in, _is_written, release_mapped_weights

pytestmark = pytest.mark.filterwarnings("default")

SIZE = 1 << 20


@pytest.fixture(params=["pagemap", "smaps"])
def shown(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this system shows of pages: themselves, or, as some sandboxes do, sums of each mapping."""
    kind = str(request.param)
    if not Path("/proc/self", kind).exists():
        pytest.skip(f"this system has no /proc/self/{kind}")
    for name in ("maps", kind):
        (tmp_path / name).symlink_to(f"/proc/self/{name}")
    monkeypatch.setattr(mapped_weights, "_PROC", tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two tensors of 4 MiB."""
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(SIZE, dtype=torch.int32), "b": torch.ones(SIZE, dtype=torch.int32)}, file)
    return file


def mapped(file: Path) -> dict[str, torch.Tensor]:
    """The file's tensors, as transformers gets them."""
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_slice(name)[...] for name in ("a", "b")}


def is_given_back(tensors: dict[str, torch.Tensor]) -> bool:
    """Release mapped weights; whether all pages of these tensors were among them."""
    ranges: list[tuple[int, int]] = []
    library = ctypes.CDLL(None)

    def madvise(start: ctypes.c_void_p, length: ctypes.c_size_t, advice: int) -> int:
        assert advice == mmap.MADV_DONTNEED
        ranges.append((start.value or 0, (start.value or 0) + length.value))
        return int(library.madvise(start, length, advice))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(madvise=madvise))
        release_mapped_weights()
    return all(
        any(first <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= last for first, last in ranges)
        for tensor in tensors.values()
    )


@pytest.mark.usefixtures("shown")
def test_weights_are_given_back_and_can_still_be_read(file: Path) -> None:
    tensors = mapped(file)
    assert all(tensor.sum() > 0 for tensor in tensors.values())
    assert is_given_back(tensors)
    assert torch.equal(tensors["a"], torch.arange(SIZE, dtype=torch.int32))
    assert (tensors["b"] == 1).all()


@pytest.mark.usefixtures("shown")
def test_a_mapping_that_was_written_to_stays(file: Path) -> None:
    """Giving it back would undo what was written."""
    tensors = mapped(file)
    tensors["b"][5] = 7
    assert not is_given_back(tensors)
    assert tensors["b"][5] == 7


@pytest.mark.parametrize("prefix", ["", "sha256-"])
def test_weights_that_a_link_names_are_given_back(file: Path, prefix: str) -> None:
    """As the hub's cache has them, and Ollama's: the system shows the name of what a link leads to."""
    stored = file.parent / "blobs" / (prefix + hashlib.sha256(file.read_bytes()).hexdigest())
    stored.parent.mkdir()
    file.rename(stored)
    file.symlink_to(stored)
    tensors = mapped(file)
    assert all(tensor.sum() > 0 for tensor in tensors.values())
    assert is_given_back(tensors)


@pytest.mark.usefixtures("shown")
def test_other_files_stay(file: Path) -> None:
    """Giving back the pages of libraries would only cost time."""
    other = file.rename(file.with_suffix(".bin"))
    tensors = mapped(other)
    assert tensors["b"].sum() > 0
    assert not is_given_back(tensors)


@pytest.mark.parametrize(("dtype", "is_mapped"), [(torch.float32, True), (torch.bfloat16, False)])
def test_parameters_are_the_files_pages(tmp_path: Path, dtype: torch.dtype, is_mapped: bool) -> None:
    """Parameters of the file's dtype are its pages, also where one weight of the file is several; others are copies."""
    file = tmp_path / "model.safetensors"
    rows = torch.randn(2048, 1024)
    save_file({"joined": rows}, file)
    model = nn.ModuleDict({name: nn.Linear(1024, 1024, bias=False, dtype=dtype) for name in ("first", "second")})
    fill_weights(tmp_path, parameters_and_buffers(model), lambda _: ("first.weight", "second.weight"))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    assert torch.equal(torch.cat([*weights.values()]), rows.to(dtype))
    assert is_given_back(weights) == is_mapped


def test_where_nothing_is_shown_all_stays(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = mapped(file)
    assert tensors["b"].sum() > 0
    (tmp_path / "maps").symlink_to("/proc/self/maps")
    monkeypatch.setattr(mapped_weights, "_PROC", tmp_path)
    assert not is_given_back(tensors)


def test_sums_of_mappings() -> None:
    """A mapping's own sums count, and no other's; pages that were written and swapped out are written ones."""
    head = "{:x}-{:x} r--p 00000000 00:1 2 {}\nSize: 8 kB\nAnonymous: {:9} kB\nSwap: {:9} kB\nVmFlags: rd\n"
    smaps = [
        (0, 1, "[heap]", 4, 4), (1, 2, "/a b.safetensors", 0, 0), (2, 3, "/b.safetensors", 4, 0),
        (3, 4, "/c.safetensors", 0, 8), (4, 5, "/lib.so", 8, 0), (5, 6, "/d.safetensors", 0, 0), (6, 7, "", 4, 0),
    ]  # fmt: skip
    lines = [line for one in smaps for line in head.format(*one).splitlines()]
    assert _clean_in(lines) == [(1, 2), (5, 6)]


def test_pages_that_the_system_does_not_tell_of_count_as_written() -> None:
    assert _is_written(io.BytesIO(b""), 0, mmap.PAGESIZE)
    assert not _is_written(io.BytesIO(bytes(8)), 0, mmap.PAGESIZE)

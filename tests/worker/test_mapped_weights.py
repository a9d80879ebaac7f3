"""Memory of mapped weights is given back, and nothing that was written to is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from corellm.worker.mapped_weights import release_mapped_weights

pytestmark = pytest.mark.filterwarnings("default")

SIZE = 1 << 20


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


def resident_bytes(file: Path) -> int:
    """Bytes of a file's mappings that are in this process's memory."""
    total, is_of_file = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split()[0]:
            is_of_file = line.endswith(str(file))
        elif is_of_file and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_weights_are_given_back_and_can_still_be_read(file: Path) -> None:
    tensors = mapped(file)
    assert all(tensor.sum() > 0 for tensor in tensors.values())
    assert resident_bytes(file) >= 8 * SIZE
    release_mapped_weights()
    assert resident_bytes(file) == 0
    assert torch.equal(tensors["a"], torch.arange(SIZE, dtype=torch.int32))
    assert (tensors["b"] == 1).all()


def test_a_mapping_that_was_written_to_stays(file: Path) -> None:
    """Giving it back would undo what was written."""
    tensors = mapped(file)
    tensors["b"][5] = 7
    before = resident_bytes(file)
    release_mapped_weights()
    assert resident_bytes(file) == before
    assert tensors["b"][5] == 7


def test_other_files_stay(file: Path) -> None:
    """Giving back the pages of libraries would only cost time."""
    other = file.rename(file.with_suffix(".bin"))
    tensors = mapped(other)
    assert tensors["b"].sum() > 0
    release_mapped_weights()
    assert resident_bytes(other) >= 4 * SIZE

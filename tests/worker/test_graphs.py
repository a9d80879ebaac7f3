"""Which steps are captured as CUDA graphs: on a fake CUDA that notes how it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from corellm.attention.graph import NotCapturable
from corellm.errors import ConfigError
from corellm.system.devices import keep_float32, on_device
from corellm.worker.graphs import CudaGraph


class Cuda:
    """The calls so far, and whether a capture fails."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.mode: Any = 0
        self.fails = False

    @contextmanager
    def graph(self, graph: Any, *, pool: Any, stream: Any) -> Iterator[None]:
        self.calls.append(("capture", pool, stream))
        yield
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: fake.calls.append("replay")))
    monkeypatch.setattr(torch.cuda, "graph", fake.graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: fake.mode)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: setattr(fake, "mode", mode))
    return fake


def capture(step: Callable[[], Tensor]) -> Tensor:
    return CudaGraph("pool", "stream").capture(step)  # type: ignore[arg-type]


def test_a_step_is_tried_before_it_is_captured(cuda: Cuda) -> None:
    """Twice, the second time with an eye on the device; told that it is captured, as it will be. Then it runs."""
    seen: list[tuple[bool, Any]] = []

    def step() -> Tensor:
        seen.append((torch.cuda.is_current_stream_capturing(), cuda.mode))
        return torch.ones(2)

    assert capture(step).tolist() == [1, 1]
    assert seen == [(True, 0), (True, "error"), (False, 0)]
    assert cuda.calls == [("capture", "pool", "stream"), "replay"]


def waits() -> Tensor:
    if torch.cuda.get_sync_debug_mode() == "error":
        raise RuntimeError("called a synchronizing CUDA operation")
    return torch.ones(1)


def fails() -> Tensor:
    raise ValueError("not while capturing")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (waits, r"waits .*\(.*test_graphs.py:\d+\)"),
        (lambda: torch.ones(1).to("meta"), "copies between devices"),
        (fails, r"ValueError: not while capturing \(.*test_graphs.py:\d+\)"),
    ],
)
def test_what_is_not_capturable_is_not_captured(cuda: Cuda, step: Callable[[], Tensor], words: str) -> None:
    """And nothing stays as it was for the trial."""
    with pytest.raises(NotCapturable, match=words):
        capture(step)
    assert not cuda.calls
    assert cuda.mode == 0
    assert not torch.cuda.is_current_stream_capturing()


def test_numbers_of_the_host_go_along(cuda: Cuda) -> None:
    assert capture(lambda: torch.ones(1, device="meta") * torch.tensor(2.0)).device.type == "meta"


def test_memory_that_runs_out_is_told_by_others(cuda: Cuda) -> None:
    def step() -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        capture(step)


def test_a_capture_that_fails_says_how_to_start_without(cuda: Cuda) -> None:
    cuda.fails = True
    with pytest.raises(ConfigError, match=r"RuntimeError: .*enforce_eager=True"):
        capture(lambda: torch.ones(1))


def test_work_goes_to_the_models_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    current = ["cuda:0"]

    @contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        before, current[0] = current[0], str(wanted)
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    with on_device(torch.device("cuda:1")):
        assert current == ["cuda:1"]
    with on_device(torch.device("cpu")):
        assert current == ["cuda:0"]


def test_float32_is_not_rounded_to_tf32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does by default; a process that uses the CPU alone keeps what it has."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    keep_float32(torch.device("cpu"))
    assert torch.backends.cudnn.allow_tf32
    keep_float32(torch.device("cuda:0"))
    assert not torch.backends.cudnn.allow_tf32

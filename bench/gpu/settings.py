"""What every process of the benchmark is told: where it runs, how large things are, where results go, until when."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.records import Records

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Settings:
    """Of one process."""

    device: str
    """`cuda` or `cpu`."""
    quick: bool
    """Tiny shapes: that it runs is all that is seen."""
    results: str
    """File of `Records`."""
    out: str
    """Folder for what is kept."""
    scratch: str
    """Folder for what is not."""
    started: float
    deadline: float
    """Both of `time.monotonic()`."""

    @property
    def records(self) -> Records:
        """Where figures go."""
        return Records(Path(self.results), self.started)

    @property
    def on_gpu(self) -> bool:
        """Whether figures mean something."""
        return self.device == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Of models and of kernels' inputs; Triton's interpreter multiplies no bfloat16."""
        import torch

        return torch.float32 if self.quick else torch.bfloat16

    def seconds_left(self) -> float:
        """Until this process has to be done."""
        return self.deadline - time.monotonic()

    def checkpoint(self, model: str) -> Path:
        """Where a model's checkpoint is written to, and read from."""
        return Path(self.scratch) / model

    def dumps(self) -> str:
        """As one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Settings:
        """From `dumps`."""
        return cls(**json.loads(text))

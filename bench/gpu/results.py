"""One run of the benchmark: where it runs, until when, and its figures and failures as lines of JSON.

Every process appends to the same file, so a process that is stopped or crashes loses nothing of what it measured.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Figures = dict[str, dict[str, Any]]
"""`{case: {name: value}}`."""


@dataclass(frozen=True)
class Run:
    """What every process is told."""

    device_type: str
    """`cuda` or `cpu`."""
    quick: bool
    """Tiny shapes: only that everything runs is seen."""
    out: str
    """Folder for results."""
    scratch: str
    """Folder for checkpoints."""
    deadline: float
    """When this process has to be done, of `time.monotonic()`."""

    @property
    def device(self) -> torch.device:
        """As torch has it."""
        import torch

        return torch.device(self.device_type)

    @property
    def dtype(self) -> torch.dtype:
        """Type of models and kernel inputs: Triton's interpreter multiplies no bfloat16."""
        import torch

        return torch.float32 if self.quick else torch.bfloat16

    def checkpoint(self, model: str) -> Path:
        """Folder of a model's checkpoint."""
        return Path(self.scratch) / model

    def figure(self, case: str, **values: Any) -> None:
        """Record the figures of a case, and print those that are numbers or words."""
        self._append("figure", case, values)
        shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        print(f"{case}: {', '.join(shown):.160}", flush=True)

    def failure(self, case: str, message: str) -> None:
        """Record that a case has no figures, and why."""
        self._append("failure", case, {"message": message})
        print(f"FAILED {case}: {message}", flush=True)

    @contextmanager
    def guard(self, case: str) -> Iterator[None]:
        """Record what fails within, and go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.failure(case, " ".join(f"{type(error).__name__}: {error}".split())[:300])

    def read(self) -> list[dict[str, Any]]:
        """Every record so far; a last line that was cut off is left out."""
        file = Path(self.out) / "results.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def figures(self) -> Figures:
        """The figures so far."""
        return {r["case"]: r["values"] for r in self.read() if r["kind"] == "figure"}

    def ceiling(self, name: str) -> float:
        """Bytes (`copy`) or floating-point operations (`matmul`) per second that this machine reached."""
        return float(self.figures()[name]["per_second"])

    def _append(self, kind: str, case: str, values: dict[str, Any]) -> None:
        with (Path(self.out) / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "case": case, "values": values}) + "\n")

"""What was measured and what failed, as lines of JSON that one process after another appends to.

A process that is stopped, or that takes the GPU down with it, loses nothing of what it wrote before.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["figure", "failure", "note"]


@dataclass(frozen=True)
class Record:
    """A line: figures of one case, or how it failed, or something to know."""

    kind: Kind
    part: str
    case: str
    values: dict[str, Any] = field(default_factory=dict)


class Records:
    """Writes records, and tells the reader of the terminal how far things are.

    Args:
        path: the file to append to.
        started: when the whole benchmark began, of `time.monotonic()`, which all processes of a machine share.
    """

    def __init__(self, path: Path, started: float) -> None:
        self._path, self._started = path, started

    def figure(self, part: str, case: str, **values: Any) -> None:
        """Figures of a case; those that are numbers or words are shown, too."""
        shown = (f"{name} {brief(value)}" for name, value in values.items() if isinstance(value, (int, float, str)))
        self._append(Record("figure", part, case, values))
        self.say(f"{case}: {', '.join(shown)}")

    def note(self, part: str, case: str, text: str) -> None:
        """Something to know beside the figures."""
        self._append(Record("note", part, case, {"text": text}))
        self.say(f"{case}: {text}")

    def failure(self, part: str, case: str, message: str, trace: str = "") -> None:
        """A case that has no figures, and why."""
        self._append(Record("failure", part, case, {"message": message, "traceback": trace}))
        self.say(f"FAILED {case}: {message}")

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {text}", flush=True)

    @contextmanager
    def guard(self, part: str, case: str) -> Iterator[None]:
        """What fails within is recorded, and the others go on; unless the GPU is lost to this process."""
        try:
            yield
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            self.failure(part, case, f"{message:.300}", traceback.format_exc())
        else:
            return
        gc.collect()  # the frames that the traceback held
        if (lost := _device_lost()) is not None:
            sys.exit(f"the GPU is lost to this process: {lost}")

    def read(self) -> list[Record]:
        """Everything so far; a last line that was cut off is not counted."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [Record(**json.loads(line)) for line in lines if line.endswith("\n")]

    def _append(self, record: Record) -> None:
        line = json.dumps({"kind": record.kind, "part": record.part, "case": record.case, "values": record.values})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def brief(value: float | str) -> str:
    """A number to four digits."""
    return value if isinstance(value, str) else f"{value:.4g}" if math.isfinite(value) and value % 1 else f"{value}"


def _device_lost() -> str | None:
    """Why the GPU takes no more work from this process; None if it does, or if none was used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        return str(error).splitlines()[0]
    return None

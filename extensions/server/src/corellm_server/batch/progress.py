"""What is shown of a batch: a bar on a terminal, else a line now and then; failures as they come; a summary.

Counts results; knows neither files nor the engine.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from tqdm.auto import tqdm

from corellm.progress import BAR_FORMAT
from corellm_server.batch.input_file import BatchRequest
from corellm_server.batch.results import Finished, Result

_LINE_SECONDS = 30.0
"""Between two lines where there is no terminal."""
_MAX_TOLD = 20
"""Most failures that are told one by one."""


class Progress:
    """Counts what was done, in this run and before."""

    def __init__(self) -> None:
        self.total = self.num_done = self.num_before = 0
        self.failures: Counter[str] = Counter()
        self._num_told = self._num_prompt_tokens = self._num_output_tokens = 0
        self._began = self._last_shown = time.monotonic()
        self._bar: Any = None

    def found(self, request: BatchRequest, earlier: Result | None) -> None:
        """Count a line of the input, and its result if an earlier run has written one."""
        self.total += 1
        if earlier is not None:
            self.num_before += 1
            self._count(earlier.failure)
        elif request.wrong is not None:
            self._tell(f"line {request.line}: {request.wrong}")

    def start(self) -> None:
        """Begin to measure time, and to show."""
        self._began = self._last_shown = time.monotonic()
        self._bar = tqdm(
            total=self.total, initial=self.num_before, desc="Requests", dynamic_ncols=True,
            bar_format=BAR_FORMAT, disable=not sys.stderr.isatty(),
        )  # fmt: skip

    def finished(self, finished: Finished) -> None:
        """Count a result that was written."""
        self._count(finished.failure)
        self._num_prompt_tokens += finished.num_prompt_tokens
        self._num_output_tokens += finished.num_output_tokens
        if finished.told is not None:
            self._tell(finished.told)
        if not self._bar.disable:
            shown = f"{self._kind} {self._rate:.0f} tok/s, {self.failures.total()} failed"
            self._bar.set_postfix_str(shown, refresh=False)
            self._bar.update()
        elif time.monotonic() - self._last_shown >= _LINE_SECONDS:
            self._last_shown = time.monotonic()
            print(self._line(), file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Show no more."""
        if self._bar is not None:
            self._bar.close()

    def summary(self) -> str:
        """The numbers of the whole batch; tokens are those of this run."""
        before = f" ({self.num_before} of them in earlier runs)" if self.num_before else ""
        failed = self.failures.total()
        rows = [f"requests   {self.num_done} of {self.total} done{before}, {failed} failed"]
        if failed:
            rows.append("failed     " + ", ".join(f"{num} x {kind}" for kind, num in self.failures.most_common()))
        if self.num_done > self.num_before:
            told = f", {self._num_output_tokens} of outputs" if self._num_output_tokens else ""
            rows.append(
                f"tokens     {self._num_prompt_tokens} of prompts{told}, in {self._seconds:.1f} s: {self._rate:.1f} "
                f"{self._kind} tokens/s"
            )
        return "\n".join(rows)

    @property
    def _seconds(self) -> float:
        return max(time.monotonic() - self._began, 1e-6)

    @property
    def _kind(self) -> str:
        """The kind of tokens that are told per second: a model that pools has no outputs of tokens."""
        return "prompt" if self._num_prompt_tokens and not self._num_output_tokens else "output"

    @property
    def _rate(self) -> float:
        return (self._num_output_tokens or self._num_prompt_tokens) / self._seconds

    def _count(self, failure: str | None) -> None:
        self.num_done += 1
        if failure is not None:
            self.failures[failure] += 1

    def _line(self) -> str:
        left = self._seconds / (self.num_done - self.num_before) * (self.total - self.num_done)
        return (
            f"corellm batch: {self.num_done} of {self.total} requests done, {self.failures.total()} failed, "
            f"{self._kind} {self._rate:.0f} tok/s, {tqdm.format_interval(left)} left"
        )

    def _tell(self, failure: str) -> None:
        """Report a failure, unless there were many."""
        self._num_told += 1
        if self._num_told <= _MAX_TOLD:
            more = "; further failures are in the results only" if self._num_told == _MAX_TOLD else ""
            tqdm.write(f"corellm batch: {failure}{more}", file=sys.stderr)

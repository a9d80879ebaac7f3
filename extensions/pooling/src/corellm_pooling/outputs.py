"""Turns pooled results into outputs: one `PoolingRequestOutput` per request, at its end.

Has the methods of `OutputProcessor` that the engine calls; knows neither tokens nor text.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from corellm.errors import CorellmError, RequestError
from corellm.outputs import RequestMetrics
from corellm.sampling_params import RequestOutputKind
from corellm.scheduling.batch import ScheduledBatch, StepResult
from corellm.scheduling.request import Request
from corellm_pooling.params import PoolingParams
from corellm_pooling.results import PoolingOutput, PoolingRequestOutput

Output = PoolingRequestOutput[PoolingOutput]


@dataclass
class _Entry:
    """A caller's request, and its result once there is one."""

    request_id: str
    request: Request
    metrics: RequestMetrics
    result: PoolingOutput | None = None


class PooledOutputs:
    """Turns step results into `PoolingRequestOutput`s."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._by_engine_id: dict[str, _Entry] = {}
        self._due: dict[str, _Entry] = {}
        """Requests that have ended, whose outputs are due."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def __len__(self) -> int:
        """Number of callers' requests whose output has not been returned."""
        return len(self._entries)

    @property
    def has_outputs(self) -> bool:
        """Whether outputs are due that no step made, as those of aborted requests."""
        return bool(self._due)

    def add(
        self, request_id: str, prompt: str | None, requests: list[Request], *, kind: RequestOutputKind, queued_ts: float
    ) -> None:
        """Add a caller's request; it may be refused already."""
        (request,) = requests
        entry = _Entry(request_id, request, RequestMetrics(request.arrival_time, queued_ts))
        self._by_engine_id[request.request_id] = entry
        if request.status.is_finished:
            self._due[request_id] = entry
        self._entries[request_id] = entry  # last: an interrupt before this line undoes all of it

    def refused(self, request_id: str, error: CorellmError, params: PoolingParams) -> Output:
        """The output of a prompt that was refused before it reached the engine."""
        return PoolingRequestOutput(request_id, None, [], error=error)

    def engine_request_ids(self, request_id: str) -> list[str]:
        """The engine's id of a caller's request; none if it is not running."""
        entry = self._entries.get(request_id)
        return [] if entry is None else [entry.request.request_id]

    def discard(self, request_id: str) -> None:
        """Forget a caller's request: it has no output any more."""
        entry = self._entries.pop(request_id, None)
        self._due.pop(request_id, None)
        if entry is not None:
            self._by_engine_id.pop(entry.request.request_id, None)

    def process(self, changed: Iterable[Request], batch: ScheduledBatch, result: StepResult) -> list[str]:
        """Take in a step's results; returns no request, as none is to be stopped early."""
        for request in changed:  # all of them have ended
            entry, data = self._by_engine_id.get(request.request_id), result.made.get(request.request_id)
            if entry is not None:
                entry.result = None if data is None else PoolingOutput(data)
                self._due[entry.request_id] = entry
        return []

    def take_outputs(self) -> list[Output]:
        """Return the outputs of the requests that have ended."""
        due = list(self._due.values())
        outputs = [_output(entry) for entry in due]
        for entry in due:
            self.discard(entry.request_id)
        return outputs

    def finish_outside_step(self, requests: Iterable[Request]) -> None:
        """Note requests that have ended, in whatever way; `take_outputs` returns their outputs."""
        for request in requests:
            entry = self._by_engine_id.get(request.request_id)
            if entry is not None:
                self._due[entry.request_id] = entry

    def rewind(self) -> list[Request]:
        """Reset requests to their beginning, after an interrupt, unless they have a result or ended; returns them."""
        self._by_engine_id = {entry.request.request_id: entry for entry in self._entries.values()}
        entries = self._entries.values()
        going_on = [
            entry.request for entry in entries if entry.result is None and entry.request.finish_reason in (None, "stop")
        ]
        for request in going_on:
            request.restart(0)
        self._due = {name: entry for name, entry in self._entries.items() if entry.request.status.is_finished}
        return going_on


def _output(entry: _Entry) -> Output:
    request, metrics = entry.request, entry.metrics
    metrics.scheduled_ts, metrics.finished_time = request.first_scheduled_time, time.monotonic()
    error = request.error
    if entry.result is None and error is None:
        error = RequestError("the request was aborted before it had a result")
    return PoolingRequestOutput(
        entry.request_id,
        entry.result,
        list(request.prompt_token_ids),
        request.num_cached_tokens,
        metrics=metrics,
        error=error,
    )

"""What happened to one request: times, and the durations that follow. Knows neither network nor report."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class RequestResult:
    """One request; times are seconds since the start of the measurement."""

    index: int
    scheduled: float
    """When it was to be sent."""
    sent: float = 0.0
    """When it was sent."""
    chunks: list[float] = field(default_factory=list)
    """When parts of the output came that hold text; a part may hold several tokens."""
    ended: float = 0.0
    """When the output ended, or the request failed."""
    prompt_tokens: int | None = None
    """As the server counts them; None if it does not."""
    output_tokens: int = 0
    """As the server counts them; the number of parts if it does not."""
    error: str | None = None
    """Kind of failure, e.g. `HTTP 429` or `timeout`; None if the request succeeded."""
    message: str = ""
    """What the server said about a failure."""

    @property
    def ttft(self) -> float | None:
        """Time to first token: from sending until the first part with text."""
        return self.chunks[0] - self.sent if self.chunks else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for outputs of one token."""
        return (self.chunks[-1] - self.chunks[0]) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Times between consecutive parts: a pause shows here, and is averaged away in `tpot`."""
        return [later - earlier for earlier, later in pairwise(self.chunks)]

    @property
    def latency(self) -> float:
        """From sending to the end."""
        return self.ended - self.sent

    def is_good(self, slo_ttft: float | None, slo_tpot: float | None) -> bool:
        """Whether it succeeded within the limits, in milliseconds. An output of one token has no second to wait for."""
        return (
            self.error is None
            and (slo_ttft is None or (self.ttft is not None and self.ttft * 1000 <= slo_ttft))
            and (slo_tpot is None or self.tpot is None or self.tpot * 1000 <= slo_tpot)
        )

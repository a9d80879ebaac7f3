"""What one request may hold."""

from __future__ import annotations

from dataclasses import dataclass, fields

from corellm.errors import ConfigError
from corellm_server.checks import check_number


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What one request may hold. More is refused before any of it is decoded, fetched or queued."""

    max_body_bytes: int = 64 << 20
    """Most bytes of a request."""
    max_held_bytes: int = 1 << 30
    """Most bytes of all requests in the server together, a value of JSON counted as 64 more; more are answered 503. A
    request that is arriving gives way if it stalls, and to one that has arrived also if it does not."""
    body_timeout: float = 60.0
    """Seconds in which a request must have arrived."""
    body_stall_timeout: float = 10.0
    """Seconds in which some kilobytes of a request that is arriving must have come, or the rest of it."""
    max_json_depth: int = 64
    """Most brackets that a request's JSON has within each other."""
    max_json_values: int = 1 << 20
    """Most commas and opening brackets of a request's JSON, those in strings not counted: it has hardly more values."""
    max_json_keys: int = 1 << 15
    """Most keys, lists and objects of a request's JSON: a million would hold up all other requests."""
    max_messages: int = 2048
    """Most messages of a conversation."""
    max_parts: int = 1024
    """Most content parts of a conversation, text included."""
    max_items: int = 64
    """Most images, videos and audio items of a conversation; the model may take fewer."""
    max_tools: int = 128
    """Most tools of a conversation."""
    max_prompts: int = 128
    """Most prompts of one `/v1/completions` request; prompts times `n` are limited to four times as many."""
    max_inputs: int = 2048
    """Most inputs of one request to a model that pools, or documents to score; each is a request of the engine."""
    max_result_values: int = 1 << 24
    """Most numbers in the results of one such request: dimensions, times inputs, or tokens where each has a result."""
    max_tokens: int | None = None
    """Most tokens that a request may ask for; None for as many as the model takes."""
    max_n: int = 16
    """Most completions of one prompt (`n`)."""
    max_stop: int = 4
    """Most stop strings."""
    max_logprobs: int = 20
    """Most log-probabilities per token."""
    max_temperature: float = 2.0
    """Highest `temperature`."""

    def __post_init__(self) -> None:
        numbers = ("body_timeout", "body_stall_timeout", "max_temperature")
        for name in numbers:
            check_number(name, getattr(self, name), 0, 1e9)
        for option in fields(self):
            value = getattr(self, option.name)
            if value == -1:
                raise ConfigError(f"{option.name} cannot be -1: for no limit give a large number")
            if option.name not in numbers and value is not None:
                check_number(option.name, value, 1, 1 << 40, whole=True)

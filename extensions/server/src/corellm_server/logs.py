"""The server's log: one line per finished request, never its content."""

from __future__ import annotations

import logging
import time

from corellm_server.exchange import Exchange

logger = logging.getLogger(__name__)

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Routes that are asked all the time."""


def log_exchange(exchange: Exchange, route: str) -> None:
    """Log what became of a request: its id, client, route, outcome, tokens and seconds."""
    level = logging.DEBUG if route in PROBES else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields = {
        "request_id": exchange.request_id,
        "client": exchange.client,
        **({} if exchange.key is None else {"key": exchange.key}),
        "route": route,
        **({} if exchange.model is None else {"model": exchange.model}),
        **({} if exchange.replica is None else {"replica": exchange.replica}),
        "status": exchange.status,
        "outcome": exchange.outcome,
        "prompt_tokens": exchange.num_prompt_tokens,
        "output_tokens": exchange.num_output_tokens,
        "seconds": round(time.monotonic() - exchange.began, 4),
    }
    logger.log(level, "%s", " ".join(f"{key}={value}" for key, value in fields.items()), extra={"fields": fields})

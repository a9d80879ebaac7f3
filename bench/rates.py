"""Rates of runs of the same number of requests and tokens, beside one of them."""

from __future__ import annotations

from collections.abc import Mapping


def print_rates(seconds: Mapping[str, float], batch: int, tokens: int, of: str) -> None:
    """Print what each run made of its time.

    Args:
        seconds: of each run, by its name.
        batch: requests at once.
        tokens: of each request; a step makes one of each.
        of: the run that the others are compared with.
    """
    for name, spent in seconds.items():
        rate, step = batch * tokens / spent, 1000 * spent / tokens
        print(f"{name:8} {rate:8.0f} tokens/s {step:6.2f} ms a step {seconds[of] / spent:6.2f} of {of}")

"""Where the states of an encoder-decoder's encoder lie: what the scheduler tells the worker of a chunk. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Where the keys and values of an encoder's states lie, which a chunk attends to across."""

    block_table: Sequence[int]
    num_states: int
    encodes: bool
    """Whether the encoder runs in this step and they are written; else they were in an earlier one."""

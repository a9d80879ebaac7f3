"""What captured steps read of states, in memory of a fixed address: how many each row has, where, and which it sees.

Knows tensors; knows neither sequences nor who owns blocks.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from corellm.attention.backend import CrossAttentionMetadata
from corellm.worker.input_batch import FlatBatch


class CapturedStates:
    """Counts and block tables of the states that each row of a captured step attends to.

    Args:
        num_rows: most rows of a step.
        most_blocks: blocks of a sequence's states.
        padding: states of a row of padding, in the null block.
        device: of the step.

    Attributes:
        ranges: `[2, num_rows]` int32, which states each row sees, as `CrossAttentionMetadata.state_ranges`.
        sees: `[num_rows]` bool, which rows see any.
    """

    def __init__(self, num_rows: int, most_blocks: int, padding: int, device: torch.device) -> None:
        self.num_rows, self._padding = num_rows, padding
        self._counts = torch.full((num_rows,), padding, dtype=torch.int64, device=device)
        self._tables = torch.zeros(num_rows, most_blocks, dtype=torch.int64, device=device)
        self.ranges = torch.zeros(2, num_rows, dtype=torch.int32, device=device)
        self.sees = torch.zeros(num_rows, dtype=torch.bool, device=device)

    def write(self, counts: NDArray[np.int64], tables: NDArray[np.int64]) -> None:
        """Write down a step: how many states each row has, `[n]`, and their blocks, `[n, num_blocks]`."""
        num_rows, num_blocks = tables.shape
        self._counts[:num_rows], self._counts[num_rows:] = torch.from_numpy(counts), self._padding
        self._tables[:num_rows, :num_blocks] = torch.from_numpy(tables)  # what is behind is not read
        self._tables[num_rows:, :1] = 0

    def write_seen(self, ranges: NDArray[np.int32], sees: NDArray[np.bool_]) -> None:
        """Write down which states the step's rows see, `[2, n]`, and which see any, `[n]`; padding sees none."""
        num_rows = len(sees)
        self.ranges[:, :num_rows], self.ranges[:, num_rows:] = torch.from_numpy(ranges), 0
        self.sees[:num_rows], self.sees[num_rows:] = torch.from_numpy(sees), False

    def metadata(self, batch: FlatBatch) -> CrossAttentionMetadata:
        """Return what a step of single tokens is told, but for `state_ranges`."""
        num_rows = len(batch.input_ids)
        return CrossAttentionMetadata(
            query_lens=[1] * num_rows,
            query_start_loc=batch.metadata.query_start_loc,
            num_states=[],  # they differ from step to step
            num_states_tensor=self._counts[:num_rows],
            block_tables=self._tables[:num_rows],
        )

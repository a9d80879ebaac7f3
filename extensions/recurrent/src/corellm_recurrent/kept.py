"""The modules of one decoder that keep a state, from the probe at load to the part of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from corellm.scheduling.block_pool import BlockPool
from corellm_recurrent.checking import make_states
from corellm_recurrent.rows import Rows
from corellm_recurrent.snapshots import Snapshots
from corellm_recurrent.states import RecurrentStates
from corellm_recurrent.widths import noting_widths


class KeptStates:
    """A `corellm.loading.kept_states.KeptStates`.

    Args:
        modules: by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._widths: Mapping[str, int] = {}
        self.most_whole = self._num_snapshots = 0
        self.uncached = ""
        self.layers = frozenset(i for module in modules.values() if isinstance(i := module.layer_idx, int))

    @contextmanager
    def probed(self) -> Iterator[None]:
        """Inside the block, where the decoder runs once, note the width of what each module gets."""
        with noting_widths(self._modules) as self._widths:
            yield

    def part(
        self,
        decoder: nn.Module,
        max_num_seqs: int,
        most_drafts: int,
        dtype: torch.dtype,
        device: torch.device,
        num_snapshots: int = 0,
    ) -> RecurrentStates:
        """Check the modules, and allocate the states of all sequences, and snapshots."""
        states = self.on_rows(decoder, Rows(max_num_seqs, most_drafts), dtype, device, num_snapshots)
        if most_drafts:
            states.uncapturable = "layers of this model keep a state, by which drafts run one after another"
        elif device.type != "cpu":
            states.uncapturable = "layers of this model keep a state, and their code was captured on CPUs alone"
        self.most_whole, self._num_snapshots = states.segment, states.num_snapshots
        self.uncached = "" if states.segment else "layers of this model go on from a state token by token"
        return states

    def block_user(self, pool: BlockPool, block_size: int) -> Snapshots | None:
        """Return what decides which snapshots are kept, and where chunks end; None where prompts have no segments."""
        return Snapshots(pool, block_size, self.most_whole, self._num_snapshots) if self.most_whole else None

    def on_rows(
        self,
        decoder: nn.Module,
        rows: Rows,
        dtype: torch.dtype,
        device: torch.device,
        num_snapshots: int | None = None,
    ) -> RecurrentStates:
        """`part` on rows that keep other states of a sequence than its newest; without segments and snapshots if their
        number is None.
        """
        num_kept: int = getattr(decoder.config, "number_of_conv_states", 1)
        modules = {name: (module, self._widths[name]) for name, module in self._modules.items()}
        return make_states(modules, num_kept, rows, dtype, device, num_snapshots)

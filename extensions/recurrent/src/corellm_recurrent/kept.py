"""The modules of one decoder that keep a state, from the probe at load to the part of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from corellm_recurrent.checking import make_states
from corellm_recurrent.rows import Rows
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
        self.layers = frozenset(i for module in modules.values() if isinstance(i := module.layer_idx, int))

    @contextmanager
    def probed(self) -> Iterator[None]:
        """Inside the block, where the decoder runs once, note the width of what each module gets."""
        with noting_widths(self._modules) as self._widths:
            yield

    def part(
        self, decoder: nn.Module, max_num_seqs: int, most_drafts: int, dtype: torch.dtype, device: torch.device
    ) -> RecurrentStates:
        """Check the modules, and allocate the states of all sequences."""
        return self.on_rows(decoder, Rows(max_num_seqs, most_drafts), dtype, device)

    def on_rows(self, decoder: nn.Module, rows: Rows, dtype: torch.dtype, device: torch.device) -> RecurrentStates:
        """`part` on rows that keep other states of a sequence than its newest."""
        num_kept: int = getattr(decoder.config, "number_of_conv_states", 1)
        modules = {name: (module, self._widths[name]) for name, module in self._modules.items()}
        return make_states(modules, num_kept, rows, dtype, device)

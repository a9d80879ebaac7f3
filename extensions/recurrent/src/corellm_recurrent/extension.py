"""What corellm calls of this distribution. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from torch import nn

    from corellm_recurrent.kept import KeptStates


class Recurrent:
    """Layers that keep a state."""

    @hookimpl
    def offer_kept_states(self, modules: Mapping[str, nn.Module]) -> KeptStates:
        """Return what runs them."""
        from corellm_recurrent.kept import KeptStates

        return KeptStates(modules)

"""Packed weights of a model by name: those that an earlier start kept, mapped, and those that are packed now.

What was kept under a name is taken if it is of this weight: one of its panels is rounded and packed anew, and compared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corellm_kernels.cpu.build import version
from corellm_kernels.cpu.huge_pages import HugePages
from corellm_kernels.cpu.kept_tensors import KeptTensors
from corellm_kernels.cpu.packing import PANEL, Packed, Unpacked, pack


class PackedWeights:
    """Packs weights, or takes them from those kept.

    Args:
        kept: where they are kept; None for nowhere.
    """

    def __init__(self, kept: KeptTensors | None = None) -> None:
        self._memory, self._kept = HugePages(), kept
        self._found = {} if kept is None else kept.take(version())
        self._all: dict[str, Tensor] = {}
        self._is_new = False
        """Whether some were not found."""

    def packed(self, name: str, weight: Unpacked) -> Packed:
        """Return a weight packed, as `packing.pack` does."""
        found = self._find(name, weight)
        self._is_new |= found is None
        made = found or pack(weight, self._memory.empty)
        self._all[name] = made.weight
        if made.scale is not None:
            self._all[_of_scale(name)] = made.scale
        return made

    def keep(self) -> None:
        """Keep all that were returned, if that is not what was found."""
        if self._kept is not None and self._is_new:
            self._kept.keep(version(), self._all)

    def _find(self, name: str, weight: Unpacked) -> Packed | None:
        if name not in self._found:
            return None
        found = Packed(self._found[name], self._found.get(_of_scale(name)))
        size, dtype = weight.format.size(weight.n, weight.k)
        if (found.weight.shape, found.weight.dtype) != ((size,), dtype):
            return None
        first = weight.n // PANEL // 2 * PANEL
        panel = pack(weight.part(first, first + PANEL))
        if (found.scale is None) != (panel.scale is None) or (found.scale is not None and len(found.scale) != weight.n):
            return None
        place = size // -(-weight.n // PANEL) * (first // PANEL)
        same = _are_same(found.weight[place : place + len(panel.weight)], panel.weight)
        if panel.scale is not None and found.scale is not None:
            same = same and _are_same(found.scale[first : first + PANEL], panel.scale)
        return found if same else None


def _of_scale(name: str) -> str:
    return f"{name} scale"


def _are_same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))

"""Transformers' Fuyu processor, mended where its image processor for Pillow fails.

`FuyuProcessor` gives `patchify_image` tensors, which that processor takes no longer from transformers 5.22 on. Knows
nothing of prompts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoProcessor


def load_processor(path: Path) -> Any:
    """Return the processor of a checkpoint; where torchvision processes its images, it stays as it is."""
    processor = AutoProcessor.from_pretrained(path)
    images = processor.image_processor
    kind: Any = type(images)  # mypy: no class is hashable
    if kind.__name__.endswith("Pil"):
        images.__class__ = _taking_tensors(kind)
    return processor


@cache
def _taking_tensors(kind: Any) -> type[Any]:
    """The class with `patchify_image` mended; it keeps its name, by which processors are saved and loaded."""

    def patchify_image(self: Any, image: Any, patch_size: Any = None) -> Any:
        if not isinstance(image, Tensor):
            return kind.patchify_image(self, image, patch_size)
        return torch.from_numpy(kind.patchify_image(self, image.numpy(), patch_size))

    members = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (kind,), {**members, "patchify_image": patchify_image})

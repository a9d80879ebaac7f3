"""Transformers' own processor of videos, in a process that has torchvision, or a stand-in for what is used of it.

Transformers makes no video processor without torchvision, which is not a dependency here. The stand-in, used where it
is not installed, has the functions that processing calls, on torch's own operations as in torchvision: bytes become
bytes. It must be there before transformers is imported, so this is another process.
"""

from __future__ import annotations

import enum
import sys
import types
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch


def hf_process(checkpoint: Path, text: str, frames: np.ndarray[Any, Any] | None) -> dict[str, np.ndarray[Any, Any]]:
    """Return the processor's tensors of a text, and of a video `[frames, height, width, 3]` if there is one."""
    return _process().submit(_processed, checkpoint, text, frames).result()


@cache
def _process() -> ProcessPoolExecutor:
    """Return the process, which takes seconds to start; it serves all callers, and ends with this one."""
    return ProcessPoolExecutor(1, get_context("spawn"), _prepare)


def _prepare() -> None:
    if find_spec("torchvision") is None:
        _install_stand_in()
    import torch

    torch.set_num_threads(1)


def _processed(checkpoint: Path, text: str, frames: np.ndarray[Any, Any] | None) -> dict[str, np.ndarray[Any, Any]]:
    # channels first, which no height or width can be taken for
    video = None if frames is None else [frames.transpose(0, 3, 1, 2)]
    output = _processor(checkpoint)(images=video, text=text, return_tensors="pt")
    return {name: tensor.numpy() for name, tensor in output.items()}


@cache
def _processor(checkpoint: Path) -> Any:
    """Return transformers' processor, told the number of queries where its configuration does not state it."""
    from transformers import AutoConfig, InstructBlipVideoProcessor

    processor = InstructBlipVideoProcessor.from_pretrained(checkpoint)
    stated = AutoConfig.from_pretrained(checkpoint).num_query_tokens
    processor.num_query_tokens = processor.num_query_tokens or stated
    return processor


def _install_stand_in() -> None:
    """Make `import torchvision` work, as far as the processor needs it."""
    import torch

    class InterpolationMode(enum.Enum):
        NEAREST = "nearest"
        NEAREST_EXACT = "nearest-exact"
        BILINEAR = "bilinear"
        BICUBIC = "bicubic"
        BOX = "box"
        HAMMING = "hamming"
        LANCZOS = "lanczos"

    def resize(
        video: torch.Tensor, size: tuple[int, int], interpolation: InterpolationMode, antialias: bool
    ) -> torch.Tensor:
        frames = video.reshape(-1, *video.shape[-3:])
        resized = torch.nn.functional.interpolate(frames, tuple(size), mode=interpolation.value, antialias=antialias)
        return resized.reshape(*video.shape[:-2], *size)

    def normalize(video: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return video.sub(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))

    def grayscale_to_rgb(video: torch.Tensor) -> torch.Tensor:
        return video

    functions = {
        "InterpolationMode": InterpolationMode,
        "grayscale_to_rgb": grayscale_to_rgb,
        "normalize": normalize,
        "pil_to_tensor": None,  # of images
        "resize": resize,
    }
    functional = _module("torchvision.transforms.functional", **functions)
    v2 = _module("torchvision.transforms.v2", functional=_module("torchvision.transforms.v2.functional", **functions))
    transforms = _module("torchvision.transforms", InterpolationMode=InterpolationMode, functional=functional, v2=v2)
    io = _module("torchvision.io", ImageReadMode=None, decode_image=None)  # of files
    _module("torchvision", __version__="0.28.0", __path__=[], transforms=transforms, io=io)


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module

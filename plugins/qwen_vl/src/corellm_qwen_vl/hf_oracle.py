"""Transformers' own Qwen-VL processors, in a process that has a stand-in for `torchvision`.

Transformers makes no video processor without torchvision, which is not a dependency here. The stand-in has the few
functions that processing calls, on torch's own operations as in torchvision; it is installed before transformers is
imported. Everything that is compared (sizes, sampling, patches, time stamps, prompt text) is transformers' code. Run as
a program: reads pickled requests from standard input, writes pickled results.

The `resize` here is torchvision's for tensors on a CPU (`transforms/v2/functional/_geometry.py`, `resize_image`): bytes
are resized as bytes on a CPU, antialiased; an image of the right size is not changed.
"""

from __future__ import annotations

import atexit
import enum
import importlib.machinery
import pickle
import subprocess
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any


def hf_process(checkpoint: Path, **request: Any) -> dict[str, Any]:
    """Return a processor's tensors, as arrays, of `text=`, `images=`, `videos=` and so on.

    Raises:
        Exception: what the processor raised.
    """
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump((str(checkpoint), request), process.stdin)
    process.stdin.flush()
    result = pickle.load(process.stdout)
    if isinstance(result, Exception):
        raise result
    arrays: dict[str, Any] = result
    return arrays


@cache
def _process() -> subprocess.Popen[bytes]:
    """Start the process, which takes seconds; it serves all callers, and ends with this one."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__file__ = f"<{name}>"
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


def install_stand_in() -> None:
    """Make `import torchvision` work, as far as the processors need it."""
    import numpy as np
    import torch

    class InterpolationMode(enum.Enum):
        NEAREST = "nearest"
        NEAREST_EXACT = "nearest-exact"
        BILINEAR = "bilinear"
        BICUBIC = "bicubic"
        BOX = "box"
        HAMMING = "hamming"
        LANCZOS = "lanczos"

    def resize(image: torch.Tensor, size: Any, interpolation: InterpolationMode, antialias: bool) -> torch.Tensor:
        if tuple(image.shape[-2:]) == tuple(size):
            return image
        flat = image.reshape(-1, *image.shape[-3:])
        resized = torch.nn.functional.interpolate(
            flat, size=tuple(size), mode=interpolation.value, align_corners=False, antialias=antialias
        )
        return resized.reshape(*image.shape[:-2], *size)

    def normalize(image: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> torch.Tensor:
        mean, std = (torch.as_tensor(x, dtype=image.dtype).view(-1, 1, 1) for x in (mean, std))
        return (image.sub_(mean) if inplace else image.sub(mean)).div_(std)

    def pil_to_tensor(image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    functional = {
        "InterpolationMode": InterpolationMode,
        "grayscale_to_rgb": lambda image: image,
        "normalize": normalize,
        "pil_to_tensor": pil_to_tensor,
        "resize": resize,
    }
    v2 = _module("torchvision.transforms.v2", functional=_module("torchvision.transforms.v2.functional", **functional))
    transforms = _module(
        "torchvision.transforms",
        InterpolationMode=InterpolationMode,
        functional=_module("torchvision.transforms.functional", **functional),
        v2=v2,
    )
    io = _module("torchvision.io", ImageReadMode=None, decode_image=None)
    _module("torchvision", __version__="0.28.0", __path__=[], transforms=transforms, io=io)


def main() -> None:
    """Serve `(checkpoint, text, images, videos, video_metadata, kwargs)` until standard input ends."""
    install_stand_in()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    processors: dict[str, Any] = {}
    while True:
        try:
            path, request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if path not in processors:
            processors[path] = transformers.AutoProcessor.from_pretrained(path)
        try:
            outputs = processors[path](**request, return_tensors="pt")
            result: Any = {name: value.numpy() for name, value in outputs.items() if hasattr(value, "numpy")}
        except Exception as error:  # the test decides what it means
            result = error
        pickle.dump(result, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

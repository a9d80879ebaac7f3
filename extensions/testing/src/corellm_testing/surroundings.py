"""The state that all code of a process shares: settings of libraries, levels of logs, generators of random numbers.

Knows where it is kept; knows no rule.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def settings() -> dict[str, Any]:
    """Return what callers set for the whole process, by name; importing libraries changes none of it."""
    import torch
    from PIL import Image, ImageFile

    backends: Any = torch.backends  # torch's types lack the precisions
    cudnn = backends.cudnn
    precisions = (
        backends.fp32_precision,
        backends.cuda.matmul.fp32_precision,
        backends.mkldnn.matmul.fp32_precision,
        cudnn.conv.fp32_precision,
    )
    return {
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's gradients": torch.is_grad_enabled(),
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        # unset is "none"; whoever sets it back sets "ieee", which is the same
        "torch's precision of float32 (TF32)": tuple(one.replace("none", "ieee") for one in precisions),
        "cuDNN's choice of algorithms": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "Pillow's bounds": (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES),
    }


def environment() -> dict[str, Any]:
    """Return what the process has of the system, by name; importing libraries changes it."""
    return {"the environment": dict(os.environ), "the working directory": os.getcwd()}


def generators() -> dict[str, Any]:
    """Return the states of the process's generators of random numbers, by name."""
    import numpy as np
    import torch

    return {
        "torch's random numbers": torch.get_rng_state().tolist(),
        "numpy's random numbers": repr(np.random.get_state()),
        "Python's random numbers": random.getstate(),
    }


def log_levels() -> dict[str, Any]:
    """Return the levels of all loggers, by name."""
    everyone = {f"the level of {name!r} logs": logger.level for name, logger in _loggers().items()}
    return {**everyone, "the level of all logs": (logging.root.level, logging.root.manager.disable)}


@contextmanager
def log_levels_at(level: int) -> Iterator[None]:
    """Put all loggers to a level inside: the one of all, and those with a level of their own.

    Each change of a level costs time for every logger that there is.
    """
    others = [logger for logger in _loggers().values() if logger.level != logging.NOTSET]
    before = {logger: logger.level for logger in (logging.root, *others)}
    for logger in before:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, own in before.items():
            logger.setLevel(own)


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict.items()
    return {name: logger for name, logger in known if isinstance(logger, logging.Logger)}


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of what has another value than before."""
    return sorted(name for name, value in before.items() if after[name] != value)

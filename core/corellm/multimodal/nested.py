"""Nested tensors: what a processor returns under one name, which is a tensor, a list of such, or plain data.

Knows how to compare and measure them, how numpy arrays and lists become tensors, and whose memory they are. Knows
nothing of items. torch is imported only when a function is called.
"""

from __future__ import annotations

from typing import Any

from corellm.media.type_checks import is_tensor


def nbytes(data: Any) -> int:
    """Bytes of the tensors in `data`; plain data counts as nothing."""
    if isinstance(data, list):
        return sum(map(nbytes, data))
    return data.numel() * data.element_size() if is_tensor(data) else 0


def shape_of(data: Any) -> str:
    """The shape, for a message."""
    if hasattr(data, "shape"):
        return str(tuple(data.shape))
    return f"({len(data)}, ...) (a list)" if isinstance(data, (list, tuple)) else f"() ({type(data).__name__})"


def same_values(left: Any, right: Any) -> bool:
    """Whether both have the same structure, dtypes, devices, shapes and values. A NaN equals nothing."""
    if is_tensor(left) or is_tensor(right):
        import torch

        same_type = is_tensor(left) and is_tensor(right) and (left.dtype, left.device) == (right.dtype, right.device)
        return same_type and torch.equal(left, right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_values, left, right))
    return type(left) is type(right) and bool(left == right)


def own_memory(data: Any) -> Any:
    """The same values in storage of exactly their size, so that nothing else is kept alive with them.

    Copies only what is a part of a larger storage.
    """
    if isinstance(data, list):
        return [own_memory(part) for part in data]
    if is_tensor(data) and data.untyped_storage().nbytes() > nbytes(data):
        import torch

        return data.clone(memory_format=torch.contiguous_format)
    return data


def to_tensors(data: Any, *, items: bool = False) -> Any:
    """Numpy arrays and rectangular lists of numbers as tensors, other lists element by element, the rest unchanged.

    Args:
        data: a tensor, array, list or plain value.
        items: `data`, if a list, has one element per item. It stays a list, and numbers in it become tensors.

    Raises:
        TypeError, ValueError: torch has no tensor for an array's dtype or byte order.
    """
    import numpy as np
    import torch

    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        # A view would keep its base alive, and torch warns of memory it may not write to.
        exact = array.flags.owndata and array.flags.writeable and array.flags.c_contiguous
        return torch.from_numpy(array if exact else array.copy())
    if not isinstance(data, (list, tuple)):
        return data
    if items:
        return [torch.tensor(part) if isinstance(part, (bool, int, float)) else to_tensors(part) for part in data]
    return torch.tensor(data) if _extents(data) is not None else [to_tensors(part) for part in data]


def _extents(data: Any) -> tuple[int, ...] | None:
    """The shape of a rectangular list of numbers; None for anything else."""
    if isinstance(data, (bool, int, float)):
        return ()
    if not isinstance(data, (list, tuple)) or not data:
        return None
    inner = _extents(data[0])
    return None if inner is None or any(_extents(part) != inner for part in data) else (len(data), *inner)

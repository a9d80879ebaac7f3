"""Tensors that one start makes and later ones map: a file for each set of them, in a folder that is given.

A file is whole or absent: it is renamed when all of it is written. One that is damaged is not taken, and is replaced.
One process writes to a folder at a time; others do not wait for it, and keep nothing. Mappings are private: what is
written to a tensor stays in this process. Knows names and tensors; what they are of, the key says.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_KEPT, _UNFINISHED = ".corellm-kept", ".corellm-unfinished"
"""Endings of this module's files. Others in the folder are left alone."""
_SUMS = "sums"
_LINE = 64
"""Tensors begin at a multiple of this many bytes, if the sizes of those before are multiples of it."""
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int8: "I8", torch.uint8: "U8"}
"""Types as the format names them."""


class KeptTensors:
    """Tensors by name, kept under a key.

    Args:
        folder: of the files; made if it is not there, for this user alone.
        key: what the tensors are of.
        limit: bytes that files in the folder may take together; those that were used longest ago are deleted.
        share: of what would be free on the disk without these files: they take no more.
    """

    def __init__(self, folder: Path, key: str, limit: int, share: float = 1.0) -> None:
        self._folder, self._key, self._limit, self._share = folder, key, limit, share
        self._seen: dict[Path, int | None] = {}
        """Files that were looked for, by the number that the disk has for them."""

    def take(self, maker: str) -> Mapping[str, Tensor]:
        """Return what `maker` kept, mapped; nothing where that is absent or damaged."""
        from safetensors import SafetensorError, safe_open

        path = self._path(maker)
        self._seen[path] = _number(path)
        try:
            with safe_open(path, framework="pt") as file:
                sums = json.loads(file.metadata()[_SUMS])
                tensors: dict[str, Tensor] = {name: file.get_slice(name)[...] for name in sums}
            if {name: _sum(tensor) for name, tensor in tensors.items()} != sums:
                raise ValueError("its sums differ")
        except FileNotFoundError:
            return {}
        except OSError as error:
            logger.warning("%s cannot be read, and is made again: %s", path, error)
            return {}
        except (SafetensorError, ValueError, TypeError, LookupError, RuntimeError) as error:
            logger.warning("%s is damaged, and is made again: %s", path, error)
            return {}
        with suppress(OSError):  # a folder that may only be read
            os.utime(path)
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        logger.info("packed weights are mapped from %s: %s bytes", self._folder, f"{num_bytes:,}")
        return tensors

    def keep(self, maker: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors, contiguous ones on the host, of one of these types: float32, bfloat16, float16, int8, uint8.

        Where that is not possible, say so in the log.
        """
        num_bytes, path = sum(tensor.nbytes for tensor in tensors.values()), self._path(maker)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _written_by_this_process(self._folder) as is_ours:
                if not is_ours or _number(path) not in (None, self._seen.get(path)):
                    logger.info("packed weights are not kept in %s: another process does it", self._folder)
                    return
                self._make_room(num_bytes)
                with NamedTemporaryFile(dir=self._folder, suffix=_UNFINISHED, delete=False) as file:
                    try:
                        _write(file, tensors)
                        os.replace(file.name, path)
                    except BaseException:
                        Path(file.name).unlink(missing_ok=True)  # another process may have made room
                        raise
        except OSError as error:
            logger.warning(
                "packed weights are not kept in %s, and every start makes them: %s; weight_cache can name another "
                "folder, or none", self._folder, error,
            )  # fmt: skip
        else:
            logger.info("packed weights are kept in %s: %s bytes", self._folder, f"{num_bytes:,}")

    def _path(self, maker: str) -> Path:
        name = hashlib.sha256(json.dumps([self._key, maker]).encode()).hexdigest()[:32]
        return self._folder / f"{name}{_KEPT}"

    def _make_room(self, num_bytes: int) -> None:
        """Delete what killed processes left, then files until so many bytes more are within the limit.

        Raises:
            OSError: they never are.
        """
        if num_bytes > self._limit:
            raise OSError(f"they take {num_bytes:,} bytes, and weight_cache_bytes is {self._limit:,}")
        files = sorted(_files_in(self._folder), key=lambda pair: (pair[0].suffix != _UNFINISHED, pair[1].st_mtime))
        taken = sum(stat.st_size for _, stat in files)
        free = taken + shutil.disk_usage(self._folder).free
        room = min(self._limit, int(self._share * free))
        if num_bytes > room:
            raise OSError(f"they take {num_bytes:,} bytes, more than {self._share:.0%} of the {free:,} that are free")
        for path, stat in files:
            if taken + num_bytes <= room and path.suffix != _UNFINISHED:
                break
            path.unlink(missing_ok=True)
            taken -= stat.st_size


@contextmanager
def _written_by_this_process(folder: Path) -> Iterator[bool]:
    """Give whether no other process writes to a folder; none begins inside the block.

    Where a file system has no locks, all write: files are whole or absent all the same.
    """
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            logger.info("%s cannot be locked: %s", folder, error)
        yield True
    finally:
        os.close(place)


def _number(path: Path) -> int | None:
    """Return what the disk has for a file, another number for each; None where there is none, or it cannot be told."""
    with suppress(OSError):
        return path.stat().st_ino
    return None


def _files_in(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield this module's files; other processes delete and rename some meanwhile."""
    for path in folder.iterdir():
        if path.suffix in (_KEPT, _UNFINISHED):
            with suppress(FileNotFoundError):
                yield path, path.lstat()


def _write(file: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, one tensor after another: none is copied in memory.

    The disk is not waited for: sums tell what a machine that failed did not write.
    """
    header: dict[str, object] = {"__metadata__": {_SUMS: json.dumps({name: _sum(x) for name, x in tensors.items()})}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _LINE)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(_bytes(tensor).numpy().data)
    file.flush()


def _sum(tensor: Tensor) -> int:
    """Return a sum of a tensor's bits, as fast as memory is read: it shows what disks and interrupted copies do."""
    flat = _bytes(tensor)
    whole = len(flat) // 8 * 8
    rest = bytes(flat[whole:].tolist())
    return int(flat[:whole].view(torch.int64).sum()) ^ int.from_bytes(rest, "little")


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)

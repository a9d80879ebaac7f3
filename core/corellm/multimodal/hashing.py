"""The identity of an item: sha256 over its content and over everything else that its embeddings depend on.

Every field is framed as tag, length, content, so that no two different values write the same bytes. Knows the kinds of
value that media and processor arguments are made of; an unknown kind is an error: `repr`, `id` and pickle would make
keys that differ between processes or, worse, agree where contents differ. Imports neither torch, numpy nor PIL.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from numbers import Rational
from typing import TYPE_CHECKING, Any, TypeAlias

from corellm.errors import InvalidParameterError, MediaError, MultiModalError, ProcessorKwargsError
from corellm.media.type_checks import is_array, is_image, is_tensor
from corellm.media.video import Video

if TYPE_CHECKING:
    from hashlib import _Hash

    import numpy as np
    import torch
    from PIL import Image

    _Buffer: TypeAlias = bytes | bytearray | memoryview

_SCHEME = "corellm item 3"
"""First field of every hash; to be changed with the framing."""
_PILLOWS = frozenset({"palette", "info", "encoderinfo", "encoderconfig", "readonly", "pyaccess"})
"""Public attributes of an image that Pillow sets: two are hashed by themselves, the others say how it was saved or how
its pixels are kept."""
_MAX_DEPTH = 64


class _UnhashableError(TypeError):
    """A value of a kind that has no stable content."""


def hash_item(
    media: Any, *, modality: str, kwargs: Mapping[str, Any], namespace: Sequence[str], salt: str | None = None
) -> str:
    """Content hash of one item.

    Args:
        media: `PIL.Image` (mode, size, palette, pixels, all of `info`, and attributes that were set on it count),
            `Video` (its file, or frames and metadata), `numpy.ndarray` and `torch.Tensor` (dtype, shape and values),
            bytes, str, numbers, None, enum members, and lists, tuples and dicts of these. Types count: `1`, `True`,
            `1.0` and `"1"` differ, as do a list and a tuple of the same.
        modality: `"image"`, `"video"` or `"audio"`.
        kwargs: the processor arguments that the item is processed with; their order does not count.
        namespace: what else the result depends on, e.g. model id and adapter version.
        salt: the request's `cache_salt`: items of different salts never have the same hash.

    Returns:
        64 hexadecimal digits, the same in every process on every machine of the same byte order.

    Raises:
        MediaError: media of an unknown kind, or an image that cannot be read.
        ProcessorKwargsError: an argument of an unknown kind.
    """
    digest = _start("content", modality, kwargs, namespace, salt)
    _add_or_raise(digest, media, MediaError, f"{modality} media")
    return digest.hexdigest()


def hash_uuid(
    uuid: str, *, modality: str, kwargs: Mapping[str, Any], namespace: Sequence[str], salt: str | None = None
) -> str:
    """Hash of an item that has a uuid; arguments as for `hash_item`, never equal to any of its results.

    Raises:
        InvalidParameterError: `uuid` is not a string, or empty.
        ProcessorKwargsError: an argument of an unknown kind.
    """
    if not isinstance(uuid, str) or not uuid:
        raise InvalidParameterError(f"a {modality}'s uuid must be a string, not empty", param="multi_modal_uuids")
    digest = _start("uuid", modality, kwargs, namespace, salt)
    _add(digest, uuid)
    return digest.hexdigest()


def _start(kind: str, modality: str, kwargs: Mapping[str, Any], namespace: Sequence[str], salt: str | None) -> _Hash:
    digest = _prefix(kind, modality, tuple(namespace)).copy()
    _add(digest, salt)
    _add_or_raise(digest, kwargs, ProcessorKwargsError, "mm_processor_kwargs")
    return digest


@lru_cache(maxsize=64)
def _prefix(kind: str, modality: str, namespace: tuple[str, ...]) -> _Hash:
    """Hash of what all items of a model have in common; copy it, never update it."""
    digest = hashlib.sha256()
    for field in (_SCHEME, kind, modality, namespace):
        _add(digest, field)
    return digest


def _add_or_raise(digest: _Hash, value: Any, error: type[MultiModalError], what: str) -> None:
    try:
        _add(digest, value)
    except _UnhashableError as reason:
        raise error(f"{what} cannot be hashed: {reason}") from reason


def _frame(digest: _Hash, tag: bytes, content: _Buffer) -> None:
    assert len(tag) == 1
    digest.update(tag + struct.pack("<Q", len(content)))
    digest.update(content)


def _add(digest: _Hash, value: Any, depth: int = 0) -> None:
    """Write one value. Kinds are exact types, so that a bool is no int and a numpy float no float."""
    if depth > _MAX_DEPTH:
        raise _UnhashableError(f"nested more than {_MAX_DEPTH} deep")
    kind = type(value)
    if value is None:
        _frame(digest, b"0", b"")
    elif kind is bool:
        _frame(digest, b"b", b"\1" if value else b"\0")
    elif kind is int:
        _frame(digest, b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    elif kind is float:
        _frame(digest, b"f", struct.pack("<d", value))
    elif kind is str:
        _frame(digest, b"s", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray)):
        _frame(digest, b"y", value)
    elif isinstance(value, Enum):
        _frame(digest, b"e", f"{kind.__module__}.{kind.__qualname__}.{value.name}".encode())
    elif isinstance(value, Mapping):
        _add_mapping(digest, value, depth)
    elif kind in (list, tuple):
        digest.update((b"l" if kind is list else b"t") + struct.pack("<Q", len(value)))
        for element in value:
            _add(digest, element, depth + 1)
    else:
        _add_media(digest, value)


def _add_mapping(digest: _Hash, value: Mapping[Any, Any], depth: int) -> None:
    """Entries in the order of their keys' own hashes: keys of different types have no other."""
    entries = []
    for key, element in value.items():
        key_digest = hashlib.sha256()
        _add(key_digest, key, depth + 1)
        entries.append((key_digest.digest(), element))
    digest.update(b"d" + struct.pack("<Q", len(entries)))
    for key_hash, element in sorted(entries, key=lambda entry: entry[0]):
        digest.update(key_hash)
        _add(digest, element, depth + 1)


def _add_media(digest: _Hash, value: Any) -> None:
    if is_image(value):
        _add_image(digest, value)
    elif is_tensor(value):
        _add_tensor(digest, value)
    elif is_array(value):
        _add_array(digest, value)
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        _add_array(digest, numpy.asarray(value))
    elif isinstance(value, Video):
        _frame(digest, b"V", b"")
        _add(digest, value.content)
    elif isinstance(value, Rational):  # a fraction, such as the resolution of a TIFF file
        _frame(digest, b"q", b"")
        _add(digest, (value.numerator, value.denominator))
    else:
        raise _UnhashableError(f"a {type(value).__module__}.{type(value).__qualname__} has no stable content")


def _add_image(digest: _Hash, image: Image.Image) -> None:
    try:
        pixels = image.tobytes()  # also loads an image that was opened but not read, with it its palette
    except (OSError, SyntaxError, ValueError) as error:
        raise _UnhashableError("the image cannot be read") from error
    palette = image.getpalette("RGBA") if image.mode in ("P", "PA") else None
    info = {key: str(value) if isinstance(value, str) else value for key, value in image.info.items()}  # PNG's `iTXt`
    _frame(digest, b"P", b"")
    _add(digest, (image.mode, *image.size, bytes(palette or ()), info, _own_attributes(image)))
    _frame(digest, b"y", pixels)


def _own_attributes(image: Image.Image) -> dict[str, Any]:
    """What a parser set on an image, by name; nothing of an image that is a file, which has its decoder there."""
    from PIL.ImageFile import ImageFile

    if isinstance(image, ImageFile):
        return {}
    return {name: value for name, value in vars(image).items() if name[0] != "_" and name not in _PILLOWS}


def _add_array(digest: _Hash, array: np.ndarray[Any, Any]) -> None:
    if array.dtype.kind in "OV":  # Python objects, and records whose `dtype.str` does not name their fields
        raise _UnhashableError(f"an array of dtype {array.dtype} has no stable content")
    _frame(digest, b"A", b"")
    _add(digest, (array.dtype.str, array.shape))
    _frame(digest, b"y", _bytes_of(array))


def _add_tensor(digest: _Hash, tensor: torch.Tensor) -> None:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise _UnhashableError("only dense tensors that hold values can be hashed")
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().reshape(-1)
    if flat.stride(0) != 1:  # `contiguous()` leaves the odd strides of empty and single-element tensors alone
        flat = flat.new_empty(flat.shape).copy_(flat)
    _frame(digest, b"T", b"")
    _add(digest, (str(tensor.dtype), tuple(tensor.shape)))
    _frame(digest, b"y", _bytes_of(flat.view(torch.uint8).numpy()))  # as bytes: numpy has no bfloat16


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """The values in C order; a copy only of what is not contiguous."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

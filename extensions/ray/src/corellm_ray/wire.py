"""A prepared request as bytes, for Ray to carry: the engine's own messages, of which nothing is unpickled.

Knows the memory that tensors are in; knows no replicas.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from corellm.children.memory import SharedMemory
from corellm.engine.process.messages import Add
from corellm.engine.process.requests import pack_request, unpack_request
from corellm.errors import CorellmError, EngineLostError
from corellm.serving import ProcessedPrompt

_Read = TypeVar("_Read")


def to_wire(prompt: ProcessedPrompt, params: Any) -> tuple[bytes, bytes]:
    """The request, and the tensors of its items.

    Raises:
        ProcessingError: an item holds something that cannot be sent.
    """
    data, file = pack_request("", prompt, params, time.monotonic())
    if file is None:
        return data, b""
    memory = SharedMemory(file)
    try:
        return data, memory.read(os.fstat(file).st_size)
    finally:
        memory.close()


def read(decode: Callable[..., _Read], *data: Any) -> _Read:
    """What a message says.

    Raises:
        EngineLostError: it cannot be read: it was damaged on its way, or is of another version.
    """
    try:
        return decode(*data)
    except (CorellmError, OSError):
        raise
    except Exception as error:  # whatever damaged bytes do to what decodes them
        raise EngineLostError("a message to or from a replica cannot be read; send the request again") from error


def from_wire(data: bytes, tensors: bytes, decode_params: Callable[[Any], Any]) -> tuple[ProcessedPrompt, Any]:
    """What was given to `to_wire`, without the prompt's text.

    Raises:
        EngineLostError: it cannot be read.
        ProcessingError: tensors are missing.
    """
    return read(_from_wire, data, tensors, decode_params)


def _from_wire(data: bytes, tensors: bytes, decode_params: Callable[[Any], Any]) -> tuple[ProcessedPrompt, Any]:
    add = msgspec.msgpack.decode(data, type=Add)
    if not tensors:
        return unpack_request(add, None, decode_params)
    memory = SharedMemory.create()
    try:
        memory.write(tensors)
        return unpack_request(add, memory.descriptor, decode_params)
    finally:
        memory.close()

"""Reads precomputed embeddings of requests: one tensor in a safetensors file, as base64. Nothing is unpickled.

Knows the file's form; rank, width, type and values are checked where all embeddings are, by `corellm.multimodal`.
"""

from __future__ import annotations

import base64
import binascii

from corellm.errors import MediaError
from corellm.multimodal.items import GivenEmbeddings

_MAX_HEADER = 4096
"""Bytes of a header: one tensor's takes a hundred, and more could be thousands of tensors."""


def read_embeddings(encoded: str) -> GivenEmbeddings:
    """The embeddings of one item.

    Args:
        encoded: base64 of a safetensors file with a tensor `[tokens, hidden_size]`, or `[1, tokens, hidden_size]`.

    Raises:
        MediaError: it is no such file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise MediaError("embeddings must be base64 of a safetensors file; this is not base64") from None
    if int.from_bytes(data[:8], "little") > _MAX_HEADER:
        raise MediaError(f"embeddings must be a safetensors file with a header of at most {_MAX_HEADER} bytes")
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, RuntimeError, TypeError, ValueError):  # a type or size that torch does not have
        raise MediaError("embeddings must be a safetensors file with one tensor; this cannot be read as one") from None
    if len(tensors) != 1:
        raise MediaError(f"embeddings must be a safetensors file with one tensor, got {len(tensors)}")
    (tensor,) = tensors.values()
    return GivenEmbeddings(tensor[0] if tensor.ndim == 3 and len(tensor) == 1 else tensor)

"""A prepared request as a message and the memory with its tensors, and back.

Knows what a request is made of; how it gets to another process is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from corellm.engine.process import messages
from corellm.engine.process.items import pack_items, unpack_items
from corellm.engine.process.messages import Add
from corellm.frontend.input_processor import ProcessedPrompt


def pack_request(
    request_id: str, prompt: ProcessedPrompt, params: Any, arrival_time: float
) -> tuple[bytes, int | None]:
    """An encoded `Add`, and the descriptor of the memory with the tensors of items, which the caller closes.

    Raises:
        ProcessingError: an item holds something that cannot be sent.
        OSError: there is not enough memory.
    """
    encoded_params = msgspec.Raw(messages.encode(params))
    items, file = pack_items(prompt.features)
    add = Add(
        request_id,
        prompt.token_ids,
        encoded_params,
        items,
        prompt.cache_salt,
        prompt.priority,
        arrival_time,
        prompt.decoder,
        prompt.extra,
    )
    try:
        return messages.encode(add), file
    except BaseException:
        if file is not None:
            os.close(file)
        raise


def unpack_request(message: Add, file: int | None, decode_params: Callable[[Any], Any]) -> tuple[ProcessedPrompt, Any]:
    """The prompt, without its text, and the parameters of a request; the descriptor may be closed after.

    Args:
        message: decoded.
        file: the descriptor that came with it.
        decode_params: decodes parameters of the model's use.
    """
    features = unpack_items(message.items, file)
    salt, priority = message.cache_salt, message.priority
    prompt = ProcessedPrompt(
        None, message.token_ids, features, salt, priority, decoder=message.decoder, extra=message.extra
    )
    return prompt, decode_params(message.params)

"""A prepared request as a message and the memory with its items' tensors, and back.

Knows what a request and its items are made of; how they get to another process is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from corellm.engine.process import messages
from corellm.engine.process.messages import Add, Item
from corellm.engine.process.tensors import TensorMemory, map_memory, restore
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.multimodal.fields import MultiModalFieldElem, MultiModalKwargsItem
from corellm.multimodal.inputs import MultiModalFeature


def pack_request(
    request_id: str, prompt: ProcessedPrompt, params: Any, arrival_time: float
) -> tuple[bytes, int | None]:
    """An encoded `Add`, and the descriptor of the memory with the tensors of items, which the caller closes.

    Raises:
        ProcessingError: an item holds something that cannot be sent.
        OSError: there is not enough memory.
    """
    encoded_params, memory = msgspec.Raw(messages.encode(params)), TensorMemory()
    add = Add(
        request_id,
        prompt.token_ids,
        encoded_params,
        [_packed(feature, memory) for feature in prompt.features],
        prompt.cache_salt,
        prompt.priority,
        arrival_time,
        prompt.decoder,
        prompt.extra,
    )
    encoded = messages.encode(add)
    return encoded, memory.write()


def unpack_request(message: Add, file: int | None, decode_params: Callable[[Any], Any]) -> tuple[ProcessedPrompt, Any]:
    """The prompt, without its text, and the parameters of a request; the descriptor may be closed after.

    Args:
        message: decoded.
        file: the descriptor that came with it; items' tensors share its memory.
        decode_params: decodes parameters of the model's use.
    """
    memory = map_memory(file)
    features = [_unpacked(item, memory) for item in message.items]
    salt, priority = message.cache_salt, message.priority
    prompt = ProcessedPrompt(
        None, message.token_ids, features, salt, priority, decoder=message.decoder, extra=message.extra
    )
    return prompt, decode_params(message.params)


def _packed(feature: MultiModalFeature, memory: TensorMemory) -> Item:
    tensors = {name: (elem.field, memory.refer(elem.data)) for name, elem in feature.data.items()}
    place = (feature.modality, feature.item, feature.identifier, feature.placeholder)
    return Item(*place, feature.precomputed, feature.variant, tensors)


def _unpacked(item: Item, memory: Any) -> MultiModalFeature:
    elems = {name: MultiModalFieldElem(field, restore(data, memory)) for name, (field, data) in item.tensors.items()}
    place = (item.modality, item.item, item.identifier, item.placeholder)
    return MultiModalFeature(*place, MultiModalKwargsItem(elems), item.precomputed, item.variant)

"""A request's items as messages, and back.

Knows what an item is made of; how its tensors get to the other process is in `tensors`.
"""

from __future__ import annotations

from collections.abc import Sequence

from corellm.engine.process.messages import Item
from corellm.engine.process.tensors import TensorMemory, map_memory, restore
from corellm.multimodal.fields import MultiModalFieldElem, MultiModalKwargsItem
from corellm.multimodal.inputs import MultiModalFeature


def pack_items(features: Sequence[MultiModalFeature]) -> tuple[list[Item], int | None]:
    """Items as plain data, and the descriptor of the memory with their tensors, which the caller closes.

    Raises:
        ProcessingError: an item holds something that cannot be sent.
        OSError: there is not enough memory.
    """
    memory = TensorMemory()
    items = [
        Item(
            feature.modality,
            feature.item,
            feature.identifier,
            feature.placeholder,
            feature.precomputed,
            feature.variant,
            {name: (elem.field, memory.refer(elem.data)) for name, elem in feature.data.items()},
        )
        for feature in features
    ]
    return items, memory.write()


def unpack_items(items: Sequence[Item], file: int | None) -> list[MultiModalFeature]:
    """What was given to `pack_items`; the tensors share the memory of the descriptor, which may be closed after."""
    memory = map_memory(file)
    return [
        MultiModalFeature(
            item.modality,
            item.item,
            item.identifier,
            item.placeholder,
            MultiModalKwargsItem(
                {
                    name: MultiModalFieldElem(field, restore(data, memory))
                    for name, (field, data) in item.tensors.items()
                }
            ),
            item.precomputed,
            item.variant,
        )
        for item in items
    ]

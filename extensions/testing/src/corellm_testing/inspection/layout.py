"""The layout of a prompt: its tokens, the embeddings they take, and their positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corellm.multimodal import MultiModalFeature
from corellm_testing.inspection.describe import describe_tensor, token_texts
from corellm_testing.inspection.grid import find_grid
from corellm_testing.inspection.recorder import Call
from corellm_testing.inspection.report import Grid, Item, Token
from corellm_testing.inspection.views import image_tensors, media_views, tensor_views

Positions = list[tuple[int, ...]]
"""Position of each token: `(position,)` or `(time, height, width)`; empty where it is unknown."""


def read_positions(call: Call | None, count: int, *, has_items: bool) -> tuple[Positions, int | None]:
    """Return a prompt's positions and the offset of generated tokens, from the engine's call of `get_rope_positions`.

    Args:
        call: of that hook; None where the engine did not call it, as for prompts without items.
        count: tokens of the prompt.
        has_items: whether the prompt has any.
    """
    import torch

    if call is None or call.error is not None:
        result: Any = "unknown" if has_items else None
    else:
        result = call.result
    match result:
        case None:
            return [(i,) for i in range(count)], 0
        case (torch.Tensor() as axes, int(offset)) if axes.ndim in (1, 2) and axes.shape[-1] == count:
            return list(zip(*axes.reshape(-1, count).tolist(), strict=True)), offset
        case _:
            return [()] * count, None


def make_item(feature: MultiModalFeature, file: str) -> Item:
    """Return the report of a processed item, without grid and images."""
    place = feature.placeholder
    return Item(
        modality=feature.modality,
        index=feature.item,
        file=file,
        identifier=feature.identifier,
        offset=place.offset,
        length=place.length,
        num_embeds=place.num_embeds,
        tensors=[describe_tensor(name, elem.data, elem.field) for name, elem in feature.data.items()],
    )


def add_images(item: Item, feature: MultiModalFeature, media: Any, positions: Positions) -> None:
    """Set the item's grid and images; the grid lies over the model's input, else over the original."""
    place, tensors = feature.placeholder, feature.data.get_data()
    if item.modality == "audio":
        item.grid = Grid(1, 1, place.num_embeds, "a guess: in order of time")
    else:
        sizes = [tuple(tensor.shape[-2:]) for _, tensor in image_tensors(tensors)]
        takers = [positions[token] for token in embedding_indices(feature)]
        item.grid = find_grid(place, takers, sizes)
    seen = tensor_views(item.modality, tensors, item.grid)
    over_original = None if any(view.step is not None for view in seen) else item.grid
    item.views = media_views(item.modality, media, over_original) + seen


def embedding_indices(feature: MultiModalFeature) -> dict[int, int]:
    """Return `{index of a prompt token: index of the item's embedding that it takes}`."""
    place = feature.placeholder
    mask = place.is_embed or (True,) * place.length
    return {place.offset + i: place.embeds_before(place.offset + i) for i, embeds in enumerate(mask) if embeds}


def make_tokens(
    tokenizer: Any, token_ids: Sequence[int], positions: Positions, features: Sequence[MultiModalFeature]
) -> list[Token]:
    """Return every token of a prompt with its text, position and embedding."""
    texts = token_texts(tokenizer, token_ids)
    item_of: dict[int, int] = {}
    embedding_of: dict[int, int] = {}
    for number, feature in enumerate(features):
        item_of |= dict.fromkeys(range(feature.placeholder.offset, feature.placeholder.end), number)
        embedding_of |= embedding_indices(feature)
    return [
        Token(token_id, texts[token_id], positions[i], item_of.get(i), embedding_of.get(i))
        for i, token_id in enumerate(token_ids)
    ]

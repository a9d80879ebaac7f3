"""Layers that attend to the tokens which an indexer chooses: of no more tokens than it chooses, to all of them.

Such a model is served for that many tokens, without its indexers, whose choice would change nothing. Knows layers of
transformers by what they have and take; knows no model family.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

_LIMIT = "max_position_embeddings"
_MASK = "build_attention_mask_from_topk"
"""The method by which some layers make a mask of what was chosen, and do not hand it on."""
_FIXING = frozenset({"factor", "original_max_position_embeddings"})
"""What a configuration says of angles, so that they do not follow the number of positions."""
_CHOSEN = "prev_topk_indices"
"""The argument by which layers hand on what an indexer chose, to layers without one."""


def limit_positions(hf_config: Any) -> None:
    """Give a model as many positions as its indexers choose tokens, if it has more; only that many are served.

    Raises:
        CheckpointError: angles of positions would change by that.
    """
    text = hf_config.get_text_config()
    chosen, positions = _num_chosen(text), getattr(text, _LIMIT, None)
    if chosen is None or not isinstance(positions, int) or positions <= chosen:
        return
    if not all(_is_fixed(angles) for angles in _angles(text)):
        from corellm_transformers.family import needs_plugin

        raise needs_plugin(
            f"{hf_config.model_type!r} attends to {chosen} tokens that an indexer chooses, of {positions}, and its "
            "rotary angles follow that number", None,
        )  # fmt: skip
    logger.warning(
        "%s attends to %d tokens that an indexer chooses, of %d positions: it is served for up to %d tokens, of which "
        "all are chosen",
        hf_config.model_type, chosen, positions, chosen,
    )  # fmt: skip
    setattr(text, _LIMIT, chosen)


def attend_to_all(decoder: nn.Module) -> None:
    """Have a decoder's layers attend to all tokens, without their indexers.

    Raises:
        CheckpointError: nothing says of how many tokens they choose all.
    """
    layers: list[Any] = [part for part in decoder.modules() if hasattr(part, "layer_idx") and hasattr(part, "indexer")]
    if _num_chosen(decoder.config) is None:
        if layers:
            from corellm_transformers.family import needs_plugin

            raise needs_plugin(
                f"{type(decoder).__name__} attends to tokens that an indexer chooses, and its configuration states no "
                "number of tokens (index_topk, index_topk_blocks) of which all are chosen",
                None,
            )
        return
    for layer in layers:
        layer.indexer = None
        if _CHOSEN in signature(layer.forward).parameters:
            layer.register_forward_pre_hook(_choose_nothing, with_kwargs=True)
        if hasattr(layer, _MASK):
            setattr(layer, _MASK, _mask_nothing)
    if any(hasattr(layer, _MASK) for layer in layers):
        decoder.register_forward_pre_hook(_without_masks, with_kwargs=True)


def _num_chosen(text: Any) -> int | None:
    """Return how many tokens the indexers of a decoder choose, by its configuration; None if there are none.

    Of some that choose groups of tokens, those of an incomplete group are never chosen: they cannot attend to all.
    """
    if getattr(text, "index_kpool", 1) > 1 and not getattr(text, "index_kpool_always_select_tail", False):
        return None
    chosen, groups = getattr(text, "index_topk", None), getattr(text, "index_topk_blocks", None)
    if isinstance(groups, int):
        chosen = groups * text.index_block_size
    return chosen if isinstance(chosen, int) else None


def _angles(text: Any) -> list[Mapping[str, Any]]:
    """Return what a configuration says of rotary angles, of all layers or of each type of layers."""
    stated = getattr(text, "rope_parameters", None) or {}
    return [stated] if "rope_type" in stated else [one for one in stated.values() if isinstance(one, Mapping)]


def _is_fixed(angles: Mapping[str, Any]) -> bool:
    """Whether angles do not follow the number of positions."""
    kind = angles.get("rope_type", "default")
    return kind in ("default", "linear") or (kind in ("yarn", "llama3") and angles.keys() >= _FIXING)


def _choose_nothing(_: nn.Module, places: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Say that a choice was made, which is none: layers ask whether it is None, and give it to attention."""
    return places, {**arguments, _CHOSEN: False}


def _mask_nothing(**_: Any) -> None:
    """Take the place of `_MASK`."""


def _without_masks(decoder: nn.Module, places: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Say that no type of layers needs a mask: a decoder makes one for its indexers, and gives it to all layers."""
    types: Any = decoder.config.layer_types  # type: ignore[union-attr]
    return places, {**arguments, "attention_mask": dict.fromkeys(types)}

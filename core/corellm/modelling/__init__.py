"""Transformers' models taken apart: what goes into the text decoder, and what is made of its hidden states.

For plugins, whose adapters need not repeat what the model's own forward pass does around its decoder. Importing this
package imports no torch. The files, in reading order:

    decoder_inputs      what a model gives its decoder: embeddings with items merged, positions, masks, ...
    layer_inputs        rows that its layers take beside a token's embedding
    published           a model that transformers does not have, loaded
    weights             a checkpoint's weights under their published names
    decoder_attention   which attention its layers call
    visibility          which tokens its layers let each token see
    output_head         how it makes logits of hidden states
    configurations      a checkpoint's configuration, of a type that transformers has
    linear_additions    what extensions add to the outputs of its linear layers
    given_hidden        a model whose inner model is skipped; `unused_layers` of vision towers
    checkpoint_files    whether a checkpoint's files are whole
    defaults            the core's implementations of hooks that call the model

`DistanceBias`, in `corellm.attention`, is what layers may pass to attention as `position_bias`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corellm.attention.distance_bias import DistanceBias
    from corellm.modelling.configurations import item_token_ids, load_config
    from corellm.modelling.decoder_inputs import DecoderInputs, Front
    from corellm.modelling.defaults import text_decoder, transformers_class
    from corellm.modelling.layer_inputs import LayerInputs
    from corellm.modelling.output_head import logits_function
    from corellm.modelling.published import ComposedModel, load_published, renamed
    from corellm.modelling.visibility import visible_tokens
    from corellm.modelling.weights import check_weights, read_weights, weight_files

__all__ = [
    "ComposedModel",
    "DecoderInputs",
    "DistanceBias",
    "Front",
    "LayerInputs",
    "check_weights",
    "item_token_ids",
    "load_config",
    "load_published",
    "logits_function",
    "read_weights",
    "renamed",
    "text_decoder",
    "transformers_class",
    "visible_tokens",
    "weight_files",
]

_HOMES = {
    "ComposedModel": "published",
    "DecoderInputs": "decoder_inputs",
    "DistanceBias": ".attention.distance_bias",
    "Front": "decoder_inputs",
    "LayerInputs": "layer_inputs",
    "item_token_ids": "configurations",
    "load_config": "configurations",
    "load_published": "published",
    "logits_function": "output_head",
    "renamed": "published",
    "text_decoder": "defaults",
    "transformers_class": "defaults",
    "visible_tokens": "visibility",
    "check_weights": "weights",
    "weight_files": "weights",
    "read_weights": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)

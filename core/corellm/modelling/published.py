"""A model that transformers does not have, or has under other names, with a checkpoint's weights.

For adapters that make the model themselves. Knows what of a model is computed, not loaded; knows no model family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from corellm.hookspecs import LoadConfig
from corellm.modelling.weights import DOWNLOAD, fill_weights

Model = TypeVar("Model", bound=nn.Module)


class ComposedModel(nn.Module):
    """Encoders beside `language_model`, a causal model of transformers, in which the engine finds what it needs."""

    language_model: Any

    def get_decoder(self) -> Any:
        """Return the text decoder without its output layer."""
        return self.language_model.get_decoder()

    def get_input_embeddings(self) -> Any:
        """Return the embedding table of text tokens."""
        return self.language_model.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        """Return what makes logits of hidden states."""
        return self.language_model.get_output_embeddings()


def parameters_and_buffers(model: nn.Module) -> Mapping[str, Tensor]:
    """Return what a model saves, by name."""
    return model.state_dict(keep_vars=True)


def load_published(
    make: Callable[[], Model],
    load_config: LoadConfig,
    *,
    weights: Callable[[Model], Mapping[str, Tensor]] = parameters_and_buffers,
    names: Callable[[str], Sequence[str]] = lambda name: (name,),
    advice: str = DOWNLOAD,
) -> Model:
    """Return a model with a checkpoint's weights; with `load_format="dummy"` they are random.

    Every weight of the model must be in the checkpoint, and the reverse. The text decoder gets the engine's attention.

    Args:
        make: makes the model in the dtypes that it is to have, without memory: the device is meta. It must have a
            `get_decoder`.
        load_config: the argument of `load_model`.
        weights: returns `{name: parameter or buffer}` of all that is loaded, as `state_dict(keep_vars=True)` does. It
            may have parts of a parameter, which lie apart in a checkpoint.
        names: returns, for a name in the checkpoint, those of `weights` that its tensor has one behind the other along
            the first dimension; none for a weight without a use. `renamed` makes such functions.
        advice: what to do if there are no files of weights, for the error.

    Raises:
        CheckpointError: a file is absent or broken, or a weight is missing, misshapen or has no place.
    """
    with torch.device("meta"):
        model = make()
    model = model.to_empty(device=load_config.device)
    get_decoder: Any = model.get_decoder
    decoder = get_decoder()
    decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config).to(load_config.device)  # computed, not loaded
    decoder.config._attn_implementation = load_config.attn_implementation
    with torch.no_grad():
        places = weights(model)
    if load_config.load_format == "dummy":
        for place in places.values():
            nn.init.normal_(place, std=0.02)
    else:
        fill_weights(load_config.model_path, places, names, advice=advice)
    return model.eval()


def renamed(beginnings: Mapping[str, str | Sequence[str]]) -> Callable[[str], tuple[str, ...]]:
    r"""Return a function from a checkpoint's names to the model's, for `load_published`.

    Args:
        beginnings: `{regular expression: what the model has in its place}` of how names begin; the first that fits
            counts, a name that none fits stays as it is. Several for a weight that is split among them, none for one
            without a use: `{r"h\.(\d+)\.qkv\.": [rf"layers.\1.{part}." for part in ("q", "k", "v")]}`.
    """
    table = [(re.compile(old), [new] if isinstance(new, str) else [*new]) for old, new in beginnings.items()]

    def names(name: str) -> tuple[str, ...]:
        for old, new in table:
            if match := old.match(name):
                return tuple(match.expand(beginning) + name[match.end() :] for beginning in new)
        return (name,)

    return names

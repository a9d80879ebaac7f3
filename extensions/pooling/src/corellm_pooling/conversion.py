"""New classes around a family's model class: without the output layer, whose weights are then never read.

Knows transformers' classes; knows no pooler and no head. The family's own code and adapter stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn


def as_embedding_model(cls: Any) -> Any:
    """Return a class like `cls` that ends with hidden states; `cls` itself if it pools already.

    Its name and module stay, because transformers looks up by them how to rename weights of older checkpoints.
    """
    return cls if _pools(cls) else _without_output_layer(cls, heads=())


def as_seq_cls_model(cls: Any) -> Any:
    """Return a class like `cls` with a `score` head in place of its output layer; `cls` itself if it pools already.

    The head is set after loading (`corellm_pooling.building`), as it may come from rows of the output layer.
    """
    return cls if _pools(cls) else _without_output_layer(cls, heads=("score", "classifier", "v_head", "value_head"))


def remove_output_layer(model: Any) -> str | None:
    """Take the output layer off a model; returns its name within its parent, None if there is none."""
    find = getattr(model, "get_output_embeddings", None)
    layer = find() if find is not None else None
    name = next((name for name, module in model.named_modules() if module is layer), None)
    if layer is None or isinstance(layer, nn.Identity) or not name:
        return None
    parent, leaf = ".".join(name.split(".")[:-1]), str(name.split(".")[-1])
    setattr(model.get_submodule(parent), leaf, nn.Identity())
    for module in model.modules():
        tied = getattr(module, "_tied_weights_keys", None)
        if isinstance(tied, dict):
            module._tied_weights_keys = {key: to for key, to in tied.items() if not key.startswith(f"{leaf}.")}
    known = getattr(model, "all_tied_weights_keys", {})
    model.all_tied_weights_keys = {key: to for key, to in known.items() if not key.startswith(f"{name}.")}
    return leaf


def _pools(cls: Any) -> bool:
    return bool(getattr(cls, "is_pooling_model", False))


def _without_output_layer(cls: Any, heads: tuple[str, ...]) -> Any:
    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, config, *args, **kwargs)
        self.output_layer = leaf = remove_output_layer(self)
        unread = [re.escape(name) for name in (leaf, *heads) if name]
        ignored = {rf"(^|\.)({'|'.join(unread)})\."} if unread else set()
        self._keys_to_ignore_on_load_unexpected = {*(self._keys_to_ignore_on_load_unexpected or ()), *ignored}

    return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__, "is_pooling_model": True})

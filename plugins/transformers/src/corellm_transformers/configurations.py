"""A checkpoint's configuration: that of the part that writes text, where a model of transformers has several.

Knows configurations and classes of models; loads no weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from corellm.errors import CheckpointError
from corellm.modelling import load_config


def read_config(path: Path, trust_remote_code: bool = False) -> Any:
    """Return a checkpoint's configuration.

    A model without a forward pass of its own has parts with one, such as those of text and of speech: then that of the
    part which transformers also maps as a multimodal language model, under that class's name.

    Raises:
        PluginNotFoundError: transformers has no such type of model, and the checkpoint does not bring it.
        CheckpointError: it does not write text token by token.
    """
    config = load_config(path, trust_remote_code)
    model_class = _model_class(config)
    if not has_forward(model_class):
        for name in type(config).sub_configs:
            part: Any = getattr(config, name, None)
            cls: Any = MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(part), None)
            if cls is not None:
                part.architectures = [cls.__name__]
                return part
    elif not issubclass(model_class, transformers.GenerationMixin):
        raise CheckpointError(
            f"{model_class.__name__} does not write text token by token: it is none of transformers' classes with "
            "GenerationMixin; run the checkpoint with transformers' own code"
        )
    return config


def has_forward(cls: Any) -> bool:
    """Whether a class of models can be run as a whole."""
    return getattr(cls.forward, "__name__", "") != "_forward_unimplemented"


def _model_class(config: Any) -> Any:
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    known = [cls for cls in named if cls is not None]
    return known[0] if known else MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(config), transformers.PreTrainedModel)

"""Which class of an encoder-only model is loaded for embeddings or for classes.

Knows configurations and classes; loads nothing.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from corellm.errors import ConfigError
from corellm_pooling.settings import Conversion


def adapter_of_classes(hf_config: Any, conversion: Conversion, *, apart: str | None = None) -> Any:
    """Return the function from the stated class to the class to load.

    Args:
        hf_config, conversion: of the model.
        apart: the name of a weight beside the encoder's, which is read for embeddings on its own.

    Raises:
        ConfigError: the model cannot be run for that.
    """
    if conversion.convert == "embed":
        return partial(_embedding_class, hf_config, apart)
    return partial(_classifying_class, hf_config)


def encoder_class(hf_config: Any) -> Any:
    """Return transformers' class of an encoder without a head."""
    from transformers import MODEL_MAPPING

    found = MODEL_MAPPING[type(hf_config)]
    return found[0] if isinstance(found, tuple) else found


def _embedding_class(hf_config: Any, apart: str | None, stated: Any) -> Any:
    """Return a class of the encoder alone: it needs no pooler."""
    cls = encoder_class(hf_config)
    return type(
        cls.__name__,
        (cls,),
        {
            "__module__": cls.__module__,
            "_keys_to_ignore_on_load_missing": {*(cls._keys_to_ignore_on_load_missing or ()), r"^pooler\."},
            "_keys_to_ignore_on_load_unexpected": {
                *(cls._keys_to_ignore_on_load_unexpected or ()),
                *([] if apart is None else [f"^{re.escape(apart)}$"]),
            },
        },
    )


def _classifying_class(hf_config: Any, stated: Any) -> Any:
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    known = (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING)
    if stated not in [mapping.get(type(hf_config), None) for mapping in known]:
        raise ConfigError(
            f"{stated.__name__} is an encoder without a head for classes, and none can be made of tokens; set "
            "convert='embed', or take a checkpoint of one that ends in ForSequenceClassification"
        )
    return stated

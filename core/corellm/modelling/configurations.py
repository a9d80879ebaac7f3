"""A checkpoint's configuration as transformers reads it, for adapters that serve whatever it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers

from corellm.errors import PluginNotFoundError

_ITEM_TOKEN = re.compile(r"(image|video|audio)_token_(id|index)")


def load_config(path: Path, trust_remote_code: bool = False) -> Any:
    """Return a checkpoint's configuration.

    Raises:
        PluginNotFoundError: transformers has no such type of model, and the checkpoint does not bring it.
    """
    stated, _ = transformers.PretrainedConfig.get_config_dict(path)
    kind, own = stated.get("model_type"), stated.get("auto_map") or {}
    if kind is not None and kind not in transformers.CONFIG_MAPPING and "AutoConfig" not in own:
        raise PluginNotFoundError(
            f"no installed plugin serves {' or '.join(stated['architectures'])}; install a plugin for it, or write one "
            f"(see CONTRIBUTING.md). transformers {transformers.__version__} has no model_type {kind!r:.100} either"
        )
    return transformers.AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)


def is_text_encoder(hf_config: Any) -> bool:
    """Whether a model sees later tokens, too: transformers has it fill masks, or its configuration says so."""
    stated = getattr(hf_config, "use_bidirectional_attention", None) is True
    if hf_config.is_encoder_decoder or getattr(hf_config, "is_decoder", False):
        return False
    return stated or type(hf_config) in transformers.MODEL_FOR_MASKED_LM_MAPPING


def item_token_ids(config: Any) -> Iterator[tuple[str, str, int]]:
    """Yield modality, name and id of the tokens that a configuration, or one inside it, names for items.

    A name is as it is written in Python: `audio_config.audio_token_id`.
    """
    for name, value in vars(config).items():
        known = _ITEM_TOKEN.fullmatch(name)
        if known is not None and isinstance(value, int):
            yield known[1], name, value
        elif isinstance(value, transformers.PretrainedConfig):
            yield from ((modality, f"{name}.{inner}", token) for modality, inner, token in item_token_ids(value))

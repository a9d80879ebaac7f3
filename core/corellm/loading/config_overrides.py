"""Applies `hf_overrides`, the operator's changes of a checkpoint's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from corellm.config import suggestion
from corellm.errors import ConfigError

HfOverrides = Mapping[str, Any] | Callable[[Any], Any]
_UNDERSTOOD = frozenset(
    {
        "architectures", "rope_scaling", "rope_theta", "quantization_config",
        "classifier_from_token", "method", "num_labels", "problem_type", "matryoshka_dimensions",
        "is_original_qwen3_reranker",  # of other engines: says what classifier_from_token says
    }
)  # fmt: skip
"""Keys that transformers accepts even if the configuration lacks them."""


def override_config(hf_config: Any, overrides: HfOverrides) -> Any:
    """Return the configuration with the changes applied.

    Args:
        hf_config: what the checkpoint says.
        overrides: `{key: value}`, where a mapping changes the keys of a part (`{"text_config": {...}}`) and leaves the
            rest of it; or a function that takes the configuration and gives one.

    Raises:
        ConfigError: a key that the configuration does not have, a value it does not take, or no configuration.
    """
    architectures = list(hf_config.architectures or ())
    try:
        if callable(overrides):
            changed = overrides(hf_config)
        else:
            changed = type(hf_config).from_dict(_merged(hf_config.to_dict(), overrides, hf_config))
    except ConfigError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:400]
        raise ConfigError(f"hf_overrides: {type(hf_config).__name__} does not take them: {reason}") from error
    if not hasattr(changed, "get_text_config"):
        raise ConfigError(f"hf_overrides must return the configuration it was given, got {type(changed).__name__}")
    if callable(overrides) and list(changed.architectures or ()) != architectures:
        raise ConfigError(
            "hf_overrides changed the architectures after the plugin was chosen by them; give a dict instead: "
            '{"architectures": [...]}'
        )
    return changed


def _merged(stated: Mapping[str, Any], changes: Mapping[str, Any], owner: Any) -> dict[str, Any]:
    """A configuration's dictionary with changes laid over it, part by part."""
    merged = dict(stated)
    for key, value in changes.items():
        if key not in stated and key not in _UNDERSTOOD and not hasattr(owner, key):
            parts = [name for name, part in stated.items() if isinstance(part, Mapping) and key in part]
            hint = f"; it is in {parts[0]!r}" if parts else suggestion(key, stated)
            raise ConfigError(
                f"hf_overrides: {type(owner).__name__} has no {key!r}{hint} (give a function to set anything)"
            )
        part = getattr(owner, key, None)
        if isinstance(value, Mapping) and hasattr(part, "to_dict"):
            value = _merged(stated[key], value, part)
        merged[key] = value
    return merged

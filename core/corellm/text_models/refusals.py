"""Which models are refused before their weights are read, by what transformers' class and configuration say.

What only shows when a layer attends is refused by the core's probe of the decoder.
"""

from __future__ import annotations

import inspect
from typing import Any

import transformers

from corellm.errors import CheckpointError, PluginNotFoundError


def check_architecture(hf_config: Any) -> None:
    """Check that the engine can run a checkpoint's model.

    Raises:
        PluginNotFoundError: transformers has no such class, or it is multimodal: it needs a plugin; or has no decoder.
        CheckpointError: it does not fit a paged cache; says why.
    """
    names = hf_config.architectures or ()
    cls = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    _refuse_two_towers(hf_config)
    if cls is None or _is_multimodal(hf_config):
        what = f"has no {' or '.join(names)}" if cls is None else f"has {cls.__name__} as a multimodal model"
        raise PluginNotFoundError(
            f"transformers {transformers.__version__} {what}, and no installed plugin serves it; install one, or write "
            f"one (see CONTRIBUTING.md)"
        )
    reason = _why_not(cls, hf_config)
    if reason is not None:
        raise CheckpointError(f"{cls.__name__} {reason}; run this checkpoint with transformers' own generate")


def _refuse_two_towers(hf_config: Any) -> None:
    """Refuse an encoder of texts beside one of images, without a decoder, as CLIP and SigLIP are."""
    base = transformers.MODEL_MAPPING.get(type(hf_config), None)
    if hasattr(base, "get_text_features") and hasattr(base, "get_image_features"):
        raise PluginNotFoundError(
            f"{base.__name__} embeds texts and images by two encoders, and corellm runs one decoder, or one encoder of "
            f"texts; run this checkpoint with transformers ({base.__name__}.get_text_features, get_image_features), or "
            f"embed with a model whose decoder reads images (convert='embed')"
        )


def _is_multimodal(hf_config: Any) -> bool:
    return any(f"{part}_config" in hf_config.sub_configs for part in ("vision", "audio"))


def _why_not(cls: Any, hf_config: Any) -> str | None:
    """Return why the engine cannot run a class, or None."""
    if hf_config.is_encoder_decoder:
        return "is an encoder-decoder, and corellm runs decoders only"
    if cls._is_stateful:
        return None  # its attention, if it has any, may be of either kind: the core's probe of the decoder finds out
    if not cls._supports_attention_backend:
        return "does not let its attention be replaced (transformers' AttentionInterface), so it has no paged cache"
    if "position_ids" not in inspect.signature(cls.forward).parameters:
        return "takes no positions, as with ALiBi, so requests cannot share a batch"
    return None

"""Tiny configurations: small in every size, and in what follows from one."""

from __future__ import annotations

import pytest
import transformers

from corellm_transformers.tiny.configs import tiny_config


@pytest.mark.parametrize(
    ("config_class", "scale"),
    [
        ("GraniteConfig", "attention_multiplier"),
        ("Gemma3TextConfig", "query_pre_attn_scalar"),
        ("Gemma2Config", "query_pre_attn_scalar"),
    ],
)
def test_the_scale_of_attention_is_that_of_small_heads(config_class: str, scale: str) -> None:
    """With that of large heads tiny ones attend to all tokens alike, and outputs hardly vary."""
    config = tiny_config(getattr(transformers, config_class), {}, 460)
    assert {"attention_multiplier": 16**-0.5, "query_pre_attn_scalar": 16}[scale] == getattr(config, scale)
    assert tiny_config(type(config), {scale: 3}, 460).to_dict()[scale] == 3, "a recipe may state another"

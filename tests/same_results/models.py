"""Models whose results are compared: a tiny one of every family, and larger ones.

Knows checkpoints and what they take; knows no requests.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.test_families import FAMILIES
from tests.text_models.stateful import MAIN as STATEFUL


@dataclass(frozen=True)
class Model:
    """A checkpoint to make, and what it takes."""

    module: str
    sizes: dict[str, Any]
    modalities: tuple[str, ...] = ()
    several: bool = False
    """Items in one prompt."""
    refused: frozenset[str] = frozenset()
    """Arguments of engines that it is refused with."""

    def make(self, folder: Path) -> Path:
        """Write the checkpoint."""
        importlib.import_module(self.module).make_tiny_checkpoint(folder, **self.sizes)
        return folder


_TEXT = "corellm_testing.tiny_text"
_SIZES = {"intermediate_size": 96, "num_key_value_heads": 2}
_ENCODERS_OF_TORCH = ("florence2", "qwen_vl", "voxtral")
"""Asked without items: torch's convolutions and products of several items have other sums than those of one."""
_STATES_OF_ITEMS = frozenset(("enable_lora", "kv_cache_dtype"))
_REFUSED = {
    **dict.fromkeys(("blip", "florence2", "idefics", "mllama"), _STATES_OF_ITEMS),
    "chameleon": frozenset(("enable_lora",)),
}
_STATES = ("Lfm2ForCausalLM", "Mamba2ForCausalLM")
"""A short convolution beside attention, and states alone."""
_MIXTURE = {"num_experts_per_tok": 2, "num_key_value_heads": 2, "intermediate_size": 32}
_MIXTURES: dict[str, dict[str, Any]] = {
    "Qwen3MoeForCausalLM": {"num_experts": 6, "moe_intermediate_size": 40, "head_dim": 16, "num_experts_per_tok": 3},
    "MixtralForCausalLM": {"num_local_experts": 4},
    "GptOssForCausalLM": {"num_local_experts": 4, "head_dim": 16, "sliding_window": 24},
    "Qwen3NextForCausalLM": STATEFUL["Qwen3NextForCausalLM"],
}
"""Experts of a softmax before and after the choice, of biases and rows in turns, and beside a shared one."""
MODELS = {
    **{
        name: Model(
            one.module,
            one.options,
            () if name in _ENCODERS_OF_TORCH else one.modalities,
            one.several,
            _REFUSED.get(name, frozenset()),
        )
        for name, one in FAMILIES.items()
    },
    **{name: Model(_TEXT, {"architecture": name, **_MIXTURE, **sizes}) for name, sizes in _MIXTURES.items()},
    **{name: Model(_TEXT, {"architecture": name, **STATEFUL[name]}) for name in _STATES},
    "GPT2LMHeadModel": Model(_TEXT, {"architecture": "GPT2LMHeadModel"}),
    "a large vocabulary": Model(_TEXT, {**_SIZES, "vocab_size": 70_000}),
    "512 x 8": Model("corellm_llava.tiny", {"hidden_size": 512, "num_layers": 8}, ("image",), several=True),
}

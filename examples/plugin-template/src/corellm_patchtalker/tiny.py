"""A tiny random PatchTalker checkpoint, made without downloads: for the contract and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, randomize_weights, spare, train_tokenizer

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "other image and row tokens": {"spare_tokens": 3},
    "larger patches": {"patch_size": 12},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""


def make_tiny_checkpoint(path: str | Path, seed: int = 0, *, patch_size: int = 8, spare_tokens: int = 0) -> Path:
    """Write a checkpoint into `path`, whose images have up to 24 patches, and return that; `seed` is the weights'.

    Args:
        patch_size: side of a patch, in pixels.
        spare_tokens: special tokens without a use, which shift the ids of the family's.
    """
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    from corellm_patchtalker.config import PatchTalkerConfig
    from corellm_patchtalker.model import PatchTalkerForCausalLM

    path = Path(path)
    tokenizer = train_tokenizer(
        [*spare(spare_tokens), "<image>", "<row>"], bos="<s>", eos="</s>", pad="<pad>", add_bos=True
    )
    text_config = LlamaConfig(**decoder_settings(tokenizer, num_key_value_heads=2))
    config = PatchTalkerConfig(
        architectures=["PatchTalkerForCausalLM"], text_config=text_config, patch_size=patch_size, max_patches=24
    )
    model = PatchTalkerForCausalLM(config)
    randomize_weights(model, seed)
    config.save_pretrained(path)
    tokenizer.save_pretrained(path)
    save_file(model.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    return path

"""A tiny random PatchTalker checkpoint, made without downloads: for the contract and experiments.

Weights are spread wider than a default initialisation, so that errors change the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import randomize_weights, spare, train_tokenizer

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "other image and row tokens": {"spare_tokens": 3},
    "larger patches": {"patch_size": 12},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""


def make_tiny_checkpoint(path: str | Path, seed: int = 0, *, patch_size: int = 8, spare_tokens: int = 0) -> Path:
    """Write a checkpoint: configuration, weights, tokenizer. An image has up to 24 patches.

    Args:
        path: directory to write to; made if need be.
        seed: of the weights.
        patch_size: side of a patch, in pixels.
        spare_tokens: special tokens without a use, which shift the ids of the family's.

    Returns:
        `path`.
    """
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    from corellm_patchtalker.config import PatchTalkerConfig
    from corellm_patchtalker.model import PatchTalkerForCausalLM

    path = Path(path)
    tokenizer = train_tokenizer(
        [*spare(spare_tokens), "<image>", "<row>"], bos="<s>", eos="</s>", pad="<pad>", add_bos=True
    )
    text_config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = PatchTalkerConfig(
        architectures=["PatchTalkerForCausalLM"], text_config=text_config, patch_size=patch_size, max_patches=24
    )
    model = PatchTalkerForCausalLM(config)
    randomize_weights(model, seed)
    config.save_pretrained(path)
    tokenizer.save_pretrained(path)
    save_file(model.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    return path

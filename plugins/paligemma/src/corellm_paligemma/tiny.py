"""A tiny random PaliGemma checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import (
    decoder_settings,
    layer_sizes,
    randomize_weights,
    spare,
    special_token_ids,
    train_sentencepiece,
)

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "PaliGemma 2": {"decoder": "gemma2"},
    "PaliGemma 2, a window shorter than an image": {"decoder": "gemma2", "sliding_window": 7},
    "PaliGemma 2, without caps": {"decoder": "gemma2", "softcap": None},
    "more tokens an image": {"patch_size": 8},
    "other token ids": {"spare_tokens": 3},
    "a tokenizer that adds no BOS": {"add_bos": False},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    decoder: str = "gemma",
    sliding_window: int = 24,
    softcap: float | None = 2.0,
    patch_size: int = 14,
    spare_tokens: int = 0,
    add_bos: bool = True,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        decoder: `gemma` or `gemma2`.
        sliding_window: tokens that every other layer of Gemma 2 sees.
        softcap: the most that a score of Gemma 2's attention becomes; None for no limit.
        patch_size: of images of 56 pixels a side.
        spare_tokens: special tokens without a use, which shift the others' ids.
        add_bos: whether the tokenizer adds BOS by itself, as published ones do; the processor turns that off.
    """
    import transformers

    patches = (56 // patch_size) ** 2
    tokenizer = _tokenizer(spare_tokens)
    images = transformers.SiglipImageProcessorPil(size={"height": 56, "width": 56}, image_seq_length=patches)
    images.image_seq_length = patches
    processor = transformers.PaliGemmaProcessor(images, tokenizer)  # adds its tokens of places to the tokenizer
    text = decoder_settings(tokenizer, num_key_value_heads=1, head_dim=16, tie_word_embeddings=False)
    if decoder == "gemma2":
        text |= {
            "num_key_value_heads": 2,
            "query_pre_attn_scalar": 16,
            "sliding_window": sliding_window,
            "layer_types": ["sliding_attention", "full_attention"],
            "attn_logit_softcapping": softcap,
        }
    config = transformers.PaliGemmaConfig(
        text_config={"model_type": decoder, **text},
        vision_config=transformers.SiglipVisionConfig(
            **layer_sizes(48, image_size=56, patch_size=patch_size, vision_use_head=False)
        ),
        image_token_index=processor.image_token_id,
        projection_dim=64,
        hidden_size=64,
        vocab_size=len(tokenizer),
        **special_token_ids(tokenizer),
        tie_word_embeddings=False,
    )
    model = transformers.PaliGemmaForConditionalGeneration(config)
    randomize_weights(model, seed)
    model.save_pretrained(path)
    processor.save_pretrained(path)
    tokenizer.add_bos_token = add_bos
    tokenizer.save_pretrained(path)
    return Path(path)


def _tokenizer(spare_tokens: int) -> Any:
    import transformers

    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *spare(spare_tokens), "<image>"]
    tokenizer = transformers.GemmaTokenizer(
        **train_sentencepiece(special), extra_special_tokens={"image_token": "<image>"}
    )
    tokenizer.add_tokens(special, special_tokens=True)
    return tokenizer

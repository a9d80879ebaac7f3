"""A tiny random Chameleon checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, randomize_weights, spare, train_tokenizer

_BEGIN, _IMAGE, _END, _SEP = "<racm3:break>", "<image>", "<eoss>", "<reserved08706>"
_NUM_CODES = 64

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "other image tokens": {"spare_tokens": 3},
    "norms behind the layers, and of several shards": {"swin_norm": True, "model_parallel_size": 2},
    "more tokens an image": {"image_size": 24},
    "images that are not square": {"image_size": 24, "image_height": 12},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "a processor with another number of tokens than the model's": {"stated_tokens": 9},
}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    image_size: int = 16,
    image_height: int | None = None,
    spare_tokens: int = 0,
    stated_tokens: int | None = None,
    swin_norm: bool = False,
    model_parallel_size: int = 1,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        hidden_size, num_layers: of the decoder.
        image_size: width of an image in pixels, a multiple of 4.
        image_height: None for a square.
        spare_tokens: special tokens without a use, before the family's.
        stated_tokens: tokens of an image in the processor's configuration; None for as many as the model makes.
        swin_norm, model_parallel_size: of the decoder; the larger published checkpoint has True and 4.
    """
    import transformers

    image_height = image_height or image_size
    codes = [f"IMGIMG{_letters(code)}Z" for code in range(_NUM_CODES)]
    tokenizer = train_tokenizer(
        [*spare(spare_tokens), _SEP, *codes, _BEGIN, _IMAGE, _END], vocab_size=500,
        bos="<s>", eos="</s>", pad="<pad>", add_bos=True,
        sep_token=_SEP, extra_special_tokens={"image_token": _IMAGE, "boi_token": _BEGIN, "eoi_token": _END},
    )  # fmt: skip
    config = transformers.ChameleonConfig(
        **decoder_settings(tokenizer, hidden_size, num_layers, num_key_value_heads=4),
        swin_norm=swin_norm, model_parallel_size=model_parallel_size,
        vocabulary_map=tokenizer.get_vocab(),
        vq_config={
            "embed_dim": 16, "latent_channels": 16, "num_embeddings": _NUM_CODES, "resolution": image_size,
            "base_channels": 32, "channel_multiplier": [1, 1, 2], "num_res_blocks": 1,
        },
    )  # fmt: skip
    model = transformers.ChameleonForConditionalGeneration(config)
    randomize_weights(model, seed)
    processor = transformers.ChameleonProcessor(
        transformers.ChameleonImageProcessorPil(
            size={"shortest_edge": image_size}, crop_size={"height": image_height, "width": image_size}
        ),
        tokenizer,
        image_seq_length=stated_tokens or (image_height // 4) * (image_size // 4),
    )
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return Path(path)


def _letters(number: int) -> str:
    """A code's number as the vocabulary writes it: A for 0 to J for 9."""
    return "".join(chr(ord("A") + int(digit)) for digit in str(number))

"""A tiny random BLIP checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, layer_sizes, randomize_weights, spare

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "a tower wider than the text": {"tower_width": 96},
    "a tower narrower than the text": {"tower_width": 48},
    "more outputs of the tower": {"patch_size": 8},
    "a larger tower": {"image_size": 84},
    "other token ids": {"spare_tokens": 3},
    "as published": {"as_published": True, "tied": True},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    tower_width: int = 64,
    image_size: int = 56,
    patch_size: int = 14,
    spare_tokens: int = 0,
    as_published: bool = False,
    tied: bool = False,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        tower_width: width of the tower's outputs; the text's is 64.
        image_size: side of the tower's square, in pixels; a multiple of the patch.
        patch_size: side of a patch, in pixels.
        spare_tokens: special tokens without a use, which shift the others' ids.
        as_published: whether the tokenizer lacks the token that begins captions, and no file names the one that ends
            them.
        tied: whether the output layer is the embedding table, as in published ones; outputs vary less then.
    """
    import transformers

    tokenizer = _tokenizer(spare_tokens)
    begin = len(tokenizer)
    if not as_published:
        tokenizer.add_special_tokens({"bos_token": "[DEC]"})
    text = decoder_settings(
        tokenizer,
        vocab_size=begin + 2,
        bos_token_id=begin,
        eos_token_id=2,  # as published, where it ends nothing
        sep_token_id=tokenizer.sep_token_id,
        tie_word_embeddings=tied,
    )
    vision = layer_sizes(tower_width, image_size=image_size, patch_size=patch_size)
    config = transformers.BlipConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    model = transformers.BlipForConditionalGeneration(config)
    randomize_weights(model, seed)
    _vary_outputs(model)
    images = transformers.BlipImageProcessorPil(size={"height": image_size, "width": image_size})
    model.generation_config.eos_token_id = tokenizer.sep_token_id
    model.save_pretrained(path)
    if as_published:
        (Path(path) / "generation_config.json").unlink()
    transformers.BlipProcessor(images, tokenizer).save_pretrained(path)
    return Path(path)


def _vary_outputs(model: Any) -> None:
    """Let each token see few others and keep most of its own, its place included: else outputs repeat one token."""
    import torch

    bert = model.text_decoder.bert
    with torch.no_grad():
        bert.embeddings.position_embeddings.weight.mul_(3)
        for layer in bert.encoder.layer:
            for block, share in ((layer.attention, 0.5), (layer.crossattention, 0.3)):
                block.self.query.weight.mul_(2)
                block.self.key.weight.mul_(2)
                block.output.dense.weight.mul_(share)


def _tokenizer(spare_tokens: int) -> Any:
    """BERT's, with single characters: so the short texts of tests are some blocks of tokens."""
    import transformers

    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    special = ["[PAD]", *spare(spare_tokens), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *characters, *(f"##{character}" for character in characters)]
    return transformers.BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})

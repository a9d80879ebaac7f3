"""A tiny random GIT checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import CORPUS, decoder_settings, layer_sizes, randomize_weights, spare

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "more tokens an image": {"patch_size": 8},
    "a larger tower": {"image_size": 84},
    "other token ids": {"spare_tokens": 3},
    "trained on videos, too": {"num_frames": 4},
    "tied embeddings": {"tied": True},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    image_size: int = 56,
    patch_size: int = 14,
    num_frames: int | None = None,
    spare_tokens: int = 0,
    tied: bool = False,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        image_size: side of the tower's square, in pixels; a multiple of the patch.
        patch_size: side of a patch, in pixels.
        num_frames: of a video, for which there are embeddings; None for a model of images alone.
        spare_tokens: special tokens without a use, which shift the others' ids.
        tied: whether the output layer is the embedding table.
    """
    import transformers

    tokenizer = _tokenizer(spare_tokens)
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    config = transformers.GitConfig(
        **decoder_settings(tokenizer, **ends),
        vision_config=layer_sizes(48, image_size=image_size, patch_size=patch_size),
        num_image_with_embedding=num_frames,
        tie_word_embeddings=tied,
    )
    model = transformers.GitForCausalLM(config)
    randomize_weights(model, seed)
    _spread_attention(model)
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": image_size}, crop_size={"height": image_size, "width": image_size}
    )
    model.save_pretrained(path)
    transformers.GitProcessor(images, tokenizer).save_pretrained(path)
    return Path(path)


def _spread_attention(model: Any) -> None:
    """Let a text's token see few others: else it sees the mean of the image's, and outputs repeat one token."""
    import torch

    with torch.no_grad():
        for layer in model.git.encoder.layer:
            for part in (layer.attention.self.query, layer.attention.self.key):
                part.weight.mul_(3)


def _tokenizer(spare_tokens: int) -> Any:
    """BERT's, with the words of a few sentences and single characters."""
    import transformers
    from tokenizers import normalizers, pre_tokenizers

    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    words = [word for line in CORPUS for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(line))]
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    special = ["[PAD]", *spare(spare_tokens), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys([*special, *characters, *(f"##{character}" for character in characters), *words])
    return transformers.BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})

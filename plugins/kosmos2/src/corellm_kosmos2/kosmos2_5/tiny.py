"""A tiny random Kosmos-2.5 checkpoint, made without downloads: for contract tests and experiments.

Its tokenizer is of the original's kind: a byte-level BPE that adds nothing to a text, whose first token begins prompts
and is written in an image's place as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import layer_sizes, randomize_weights, spare, special_token_ids, train_tokenizer

_TAGS = ("<ocr>", "<md>", "<bbox>", "</bbox>", *(f"<{axis}_{place}>" for axis in "xy" for place in range(16)))
_NAMES = {"boi_token": "<image>", "eoi_token": "</image>", "image_token": "<s>"}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "another number of queries": {"latent_query_num": 5},
    "another padding token, and more positions": {"spare_tokens": 3},
    "more and larger patches": {"max_patches": 48, "patch_size": 12},
    "embeddings that are not scaled": {"scale_embedding": False},
    "tied embeddings": {"tied": True},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {"a tokenizer without tokens around an image": {"has_image_tokens": False}}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    max_patches: int = 32,
    max_num_patches: int = 64,
    patch_size: int = 8,
    latent_query_num: int = 8,
    hidden_size: int = 64,
    num_layers: int = 2,
    scale_embedding: bool = True,
    spare_tokens: int = 0,
    has_image_tokens: bool = True,
    tied: bool = False,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        max_patches: patches of an image, the padding included.
        max_num_patches: rows, and columns, that the model has weights for, with that of padding; published models have
            as many as `max_patches`.
        patch_size: side of a patch, in pixels.
        latent_query_num: tokens of an image.
        hidden_size, num_layers: of the text model.
        scale_embedding: whether it multiplies embeddings by the root of their width.
        spare_tokens: tokens without a use, which shift the ids of all others.
        has_image_tokens: whether the tokenizer names the tokens around an image.
        tied: whether the output layer is the embedding table, as published; then outputs repeat themselves.
    """
    import torch
    import transformers

    tokenizer = _make_tokenizer(spare_tokens)
    images = transformers.Kosmos2_5ImageProcessorPil(
        max_patches=max_patches, patch_size={"height": patch_size, "width": patch_size}
    )
    text = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 1024,
        "embed_dim": hidden_size,
        "ffn_dim": 2 * hidden_size,
        "layers": num_layers,
        "attention_heads": 4,
        "scale_embedding": scale_embedding,
        "tie_word_embeddings": tied,
        **special_token_ids(tokenizer),
    }
    vision = layer_sizes(48, head_dim=8, patch_embed_hidden_size=3 * patch_size**2, max_num_patches=max_num_patches)
    config = transformers.Kosmos2_5Config(
        text_config=text, vision_config=vision, latent_query_num=latent_query_num, tie_word_embeddings=tied
    )
    model = transformers.Kosmos2_5ForConditionalGeneration(config)
    randomize_weights(model, seed)
    with torch.no_grad():
        # as trained: patches, whose outputs get unit length, count beside the queries; layers count beside embeddings,
        # which are scaled; and no text has the padding token, read or written
        model.image_to_text_projection.dense.weight *= 24
        model.get_input_embeddings().weight /= 2
        for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
            embeddings.weight[tokenizer.pad_token_id] = 0
    processor = transformers.Kosmos2_5Processor(images, tokenizer, num_image_tokens=latent_query_num)
    model.save_pretrained(path)
    processor.save_pretrained(path)
    if not has_image_tokens:
        _make_tokenizer(spare_tokens, {}).save_pretrained(path)
    return Path(path)


def _make_tokenizer(spare_tokens: int, names: Mapping[str, str] = _NAMES) -> Any:
    """A byte-level BPE; tags are its tokens, but no special ones.

    Args:
        spare_tokens: tokens without a use.
        names: `{attribute: token}` of the tokens that stand for an image.
    """
    tokenizer = train_tokenizer(
        [*spare(spare_tokens), "<s>", "<pad>", "</s>", "<unk>", "<image>", "</image>"],
        eos="</s>",
        extra_special_tokens=dict(names),
        bos_token="<s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    tokenizer.add_tokens(list(_TAGS))
    return tokenizer

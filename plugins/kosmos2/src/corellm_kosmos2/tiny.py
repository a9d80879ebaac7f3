"""A tiny random Kosmos-2 checkpoint, made without downloads: for contract tests and experiments.

Its tokenizer is of the original's kind: a Unigram model that marks words with U+2581, has BOS, padding, EOS and the
unknown token first and words right behind them, and puts every text between BOS and EOS.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import CORPUS, layer_sizes, randomize_weights, spare, special_token_ids

_WORD_MARK = "\u2581"
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "another number of queries": {"latent_query_num": 5},
    "another padding token, and more positions": {"spare_tokens": 3},
    "a larger tower": {"image_size": 84},
    "embeddings that are not scaled": {"scale_embedding": False},
    "a tokenizer that drops spaces behind the last word": {"drops_spaces": True},
    "tied embeddings": {"tied": True},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {"a tokenizer without tokens around an image": {"has_image_tokens": False}}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    image_size: int = 56,
    latent_query_num: int = 8,
    hidden_size: int = 64,
    num_layers: int = 2,
    scale_embedding: bool = True,
    spare_tokens: int = 0,
    drops_spaces: bool = False,
    has_image_tokens: bool = True,
    tied: bool = False,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        image_size: side of the tower's square, in pixels; a multiple of 14, the patch.
        latent_query_num: tokens of an image.
        hidden_size, num_layers: of the text model.
        scale_embedding: whether it multiplies embeddings by the root of their width.
        spare_tokens: tokens without a use, which shift the ids of all others.
        drops_spaces: whether the tokenizer splits words at white space before it marks them.
        has_image_tokens: whether the tokenizer is saved with the tokens that the processor adds to it.
        tied: whether the output layer is the embedding table, as published; then outputs repeat themselves.
    """
    import torch
    import transformers

    tokenizer = _make_tokenizer(spare_tokens, drops_spaces=drops_spaces)
    size = {"height": image_size, "width": image_size}
    images = transformers.CLIPImageProcessorPil(size=size, crop_size=size)
    processor = transformers.Kosmos2Processor(images, tokenizer, num_patch_index_tokens=16)  # adds the family's tokens
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
    vision = layer_sizes(48, image_size=image_size, patch_size=14)
    config = transformers.Kosmos2Config(
        text_config=text, vision_config=vision, latent_query_num=latent_query_num, tie_word_embeddings=tied
    )
    model = transformers.Kosmos2ForConditionalGeneration(config)
    randomize_weights(model, seed)
    with torch.no_grad():  # as trained: no text has the padding token, read or written
        for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
            embeddings.weight[tokenizer.pad_token_id] = 0
    model.save_pretrained(path)
    processor.save_pretrained(path)
    if not has_image_tokens:
        _make_tokenizer(spare_tokens, drops_spaces=drops_spaces).save_pretrained(path)
    return Path(path)


def _make_tokenizer(spare_tokens: int, *, drops_spaces: bool) -> Any:
    """Special tokens, the words of a few sentences, and single characters."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Counter(_WORD_MARK + word for line in CORPUS for word in line.split())
    characters = [_WORD_MARK, *map(chr, range(ord("!"), ord("~") + 1))]
    total = words.total() + len(characters)
    special = [*spare(spare_tokens), *_SPECIAL]
    vocab = [(piece, 0.0) for piece in special]
    vocab += [(word, math.log(count / total)) for word, count in words.items()]
    vocab += [(character, math.log(1 / total)) for character in characters]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=special.index("<unk>"), byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    marked = pre_tokenizers.Metaspace(_WORD_MARK, prepend_scheme="always")
    split = [pre_tokenizers.WhitespaceSplit()] if drops_spaces else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, marked])
    tokenizer.decoder = decoders.Metaspace(_WORD_MARK, prepend_scheme="always")
    bos, pad, eos, unk = _SPECIAL
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", special_tokens=[(token, special.index(token)) for token in (bos, eos)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, pad_token=pad, eos_token=eos, unk_token=unk
    )
    fast.model_input_names = ["input_ids", "attention_mask"]
    return fast

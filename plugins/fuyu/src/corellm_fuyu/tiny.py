"""A tiny random Fuyu checkpoint, made without downloads: for contract tests and experiments.

Its tokenizer is of the original's kind: a Unigram model that marks words with U+2581, knows the family's tokens as
ordinary pieces, falls back to bytes, and begins every text with `|ENDOFTEXT|`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, randomize_weights, spare, special_token_ids

_WORD_MARK = "\u2581"
_END = "|ENDOFTEXT|"
_FAMILY = ("<unk>", "<s>", "|SPEAKER|", "|NEWLINE|", _END)
_SENTENCES = (
    "What shape is in the picture? A red circle, a blue square, a green triangle. How many objects are there? "
    "Generate a coco-style caption. Describe the image: yes no left right above below one two three four five. "
    "The quick brown fox jumps over the lazy dog."
)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "another image token": {"spare_tokens": 3},
    "smaller patches": {"patch_size": 20, "max_height": 120, "max_width": 160},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    max_height: int = 210,
    max_width: int = 240,
    hidden_size: int = 64,
    num_layers: int = 2,
    patch_size: int = 30,
    spare_tokens: int = 0,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        max_height, max_width: what larger images are shrunk to fit into, in pixels; multiples of the patch.
        hidden_size, num_layers: of the decoder.
        patch_size: side of a patch, in pixels.
        spare_tokens: tokens without a use, which shift the ids of the family's.
    """
    import transformers

    tokenizer = _make_tokenizer(spare_tokens)
    special_tokens = {**special_token_ids(tokenizer), "bos_token_id": tokenizer.convert_tokens_to_ids("<s>")}
    config = transformers.FuyuConfig(
        text_config=transformers.PersimmonConfig(
            **decoder_settings(tokenizer, hidden_size, num_layers, **special_tokens)
        ),
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        patch_size=patch_size,
        image_token_id=tokenizer.convert_tokens_to_ids("|SPEAKER|"),
        **special_tokens,
    )
    model = transformers.FuyuForCausalLM(config)
    randomize_weights(model, seed)
    image_processor = transformers.FuyuImageProcessorPil(
        size={"height": max_height, "width": max_width}, patch_size={"height": patch_size, "width": patch_size}
    )
    model.save_pretrained(path)
    transformers.FuyuProcessor(image_processor, tokenizer).save_pretrained(path)
    return Path(path)


def _make_tokenizer(spare_tokens: int) -> Any:
    """Family tokens, bytes, the words of a few sentences, and single characters."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Counter(_WORD_MARK + word for word in _SENTENCES.split())
    characters = [_WORD_MARK, *map(chr, range(ord("!"), ord("~") + 1))]
    total = words.total() + len(characters)
    unknown, *others = _FAMILY
    special = [unknown, *spare(spare_tokens), *others]
    vocab = [(piece, 0.0) for piece in (*special, *(f"<0x{byte:02X}>" for byte in range(256)))]
    vocab += [(word, math.log(count / total)) for word, count in words.items()]
    vocab += [(character, math.log(1 / total)) for character in characters]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_WORD_MARK), normalizers.Replace(" ", _WORD_MARK)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_WORD_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special_tokens = [(_END, special.index(_END))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{_END} $A", special_tokens=special_tokens)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_END, eos_token=_END, pad_token="<unk>", unk_token="<unk>"
    )
    fast.model_input_names = ["input_ids", "attention_mask"]
    return fast

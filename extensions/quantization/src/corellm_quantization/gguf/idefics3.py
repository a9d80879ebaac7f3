"""The tower of Idefics 3 and SmolVLM in a GGUF file, of SigLIP: its configuration, and its processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile
from corellm_quantization.gguf.vision import colours, layer_sizes, tokens_per_side

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_IMAGE = "<image>"
_TOKENS = (_IMAGE, "<fake_token_around_image>")
_TILES, _MOST_TILES = 4, 16
"""Tiles on the longer side of an image: of all published models, where the file does not say, and at most."""


def configure(
    folder: Path, text: PreTrainedConfig, tokenizer: Any, model: GgufFile, file: GgufFile
) -> PreTrainedConfig:
    """See `tower.add_tower`."""
    from transformers import Idefics3Config, Idefics3ImageProcessorPil, Idefics3Processor

    if absent := [token for token in _TOKENS if token not in tokenizer.get_vocab()]:
        raise CheckpointError(f"{model.path}: the tokenizer lacks {', '.join(absent)}; this is no Idefics 3 or SmolVLM")
    vision, scale = layer_sizes(file), file.positive("clip.vision.projector.scale_factor")
    num_tokens, size = tokens_per_side(file, scale) ** 2, vision["image_size"]
    longest = file.positive("clip.vision.preproc_image_size", _TILES * size)
    if longest > _MOST_TILES * size:
        raise CheckpointError(
            f"{file.path}: images of {longest} pixels (clip.vision.preproc_image_size) have more than {_MOST_TILES} "
            f"tiles of {size} on a side"
        )
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": longest}, max_image_size={"longest_edge": size}, **colours(file)
    )
    processor = Idefics3Processor(images, tokenizer, image_seq_len=num_tokens, chat_template=tokenizer.chat_template)
    processor.save_pretrained(folder)
    return Idefics3Config(
        text_config=text,
        vision_config=vision,
        scale_factor=scale,
        image_token_id=tokenizer.convert_tokens_to_ids(_IMAGE),
        tie_word_embeddings=text.tie_word_embeddings,
        architectures=["Idefics3ForConditionalGeneration"],
        dtype=text.dtype,
    )

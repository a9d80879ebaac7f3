"""The tower of Idefics 3 and SmolVLM in a GGUF file, of SigLIP: its configuration, and its processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_IMAGE = "<image>"
_TOKENS = (_IMAGE, "<fake_token_around_image>")
_TILES = 4
"""Tiles on the longer side of an image, where the file does not say: of all published models."""


def configure(
    folder: Path, text: PreTrainedConfig, tokenizer: Any, model: GgufFile, file: GgufFile
) -> PreTrainedConfig:
    """See `tower.add_tower`."""
    from transformers import Idefics3Config, Idefics3ImageProcessorPil, Idefics3Processor

    if absent := [token for token in _TOKENS if token not in tokenizer.get_vocab()]:
        raise CheckpointError(f"{model.path}: the tokenizer lacks {', '.join(absent)}; this is no Idefics 3 or SmolVLM")
    size, patch = (file.value(f"clip.vision.{name}", int) for name in ("image_size", "patch_size"))
    scale = file.value("clip.vision.projector.scale_factor", int)
    if not 0 < patch * scale <= size:
        raise CheckpointError(f"{file.path}: a tile of {size} pixels has no tokens of {scale} patches of {patch}")
    longest = file.value("clip.vision.preproc_image_size", int, default=_TILES * size)
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": longest}, max_image_size={"longest_edge": size},
        image_mean=file.value("clip.vision.image_mean", list), image_std=file.value("clip.vision.image_std", list),
    )  # fmt: skip
    processor = Idefics3Processor(
        images, tokenizer, image_seq_len=(size // patch // scale) ** 2, chat_template=tokenizer.chat_template
    )
    processor.save_pretrained(folder)
    return Idefics3Config(
        text_config=text,
        vision_config={
            "hidden_size": file.value("clip.vision.embedding_length", int),
            "intermediate_size": file.value("clip.vision.feed_forward_length", int),
            "num_hidden_layers": file.count("clip.vision.block_count"),
            "num_attention_heads": file.value("clip.vision.attention.head_count", int),
            "layer_norm_eps": file.value("clip.vision.attention.layer_norm_epsilon", float),
            "image_size": size,
            "patch_size": patch,
        },
        scale_factor=scale,
        image_token_id=tokenizer.convert_tokens_to_ids(_IMAGE),
        tie_word_embeddings=text.tie_word_embeddings,
        architectures=["Idefics3ForConditionalGeneration"],
        dtype=text.dtype,
    )

"""Gemma 3's tower in a GGUF file, of SigLIP: its configuration, and its processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_MARKS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
_IMAGE = {"image_token": "<image_soft_token>"}
_SCALE = 4
"""Side of a token in patches, where the file does not say."""


def configure(
    folder: Path, text: PreTrainedConfig, tokenizer: Any, model: GgufFile, file: GgufFile
) -> PreTrainedConfig:
    """See `tower.add_tower`. A token for images that the tokenizer lacks is of no row of the embedding."""
    from transformers import (
        Gemma3Config,
        Gemma3ImageProcessorPil,
        Gemma3Processor,
        PreTrainedTokenizerFast,
        SiglipVisionConfig,
    )

    if text.model_type != "gemma3_text":
        raise CheckpointError(f"{file.path} is Gemma 3's encoder, and {model.path} is of {model.architecture!r:.60}")
    if absent := [token for token in _MARKS.values() if token not in tokenizer.get_vocab()]:
        raise CheckpointError(f"{model.path}: the tokenizer lacks {', '.join(absent)}; this is no Gemma 3 with images")
    named = PreTrainedTokenizerFast.from_pretrained(folder, **_MARKS, **_IMAGE)  # as the processor asks for them
    size, patch = (file.value(f"clip.vision.{name}", int) for name in ("image_size", "patch_size"))
    scale = file.value("clip.vision.projector.scale_factor", int, default=_SCALE)
    if not 0 < patch * scale <= size:
        raise CheckpointError(f"{file.path}: an image of {size} pixels has no tokens of {scale} patches of {patch}")
    vision = SiglipVisionConfig(
        hidden_size=file.value("clip.vision.embedding_length", int),
        intermediate_size=file.value("clip.vision.feed_forward_length", int),
        num_hidden_layers=file.count("clip.vision.block_count"),
        num_attention_heads=file.value("clip.vision.attention.head_count", int),
        layer_norm_eps=file.value("clip.vision.attention.layer_norm_epsilon", float),
        image_size=size,
        patch_size=patch,
        vision_use_head=False,
    )
    mean, deviation = (file.value(f"clip.vision.image_{name}", list) for name in ("mean", "std"))
    images = Gemma3ImageProcessorPil(size={"height": size, "width": size}, image_mean=mean, image_std=deviation)
    num_tokens = (size // patch // scale) ** 2
    processor = Gemma3Processor(images, named, image_seq_length=num_tokens, chat_template=named.chat_template)
    processor.save_pretrained(folder)
    return Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=num_tokens, boi_token_index=named.boi_token_id,
        eoi_token_index=named.eoi_token_id, image_token_index=named.image_token_id,
        tie_word_embeddings=text.tie_word_embeddings, architectures=["Gemma3ForConditionalGeneration"],
        dtype=text.dtype,
    )  # fmt: skip

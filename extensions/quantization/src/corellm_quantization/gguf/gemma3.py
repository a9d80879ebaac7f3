"""Gemma 3's tower in a GGUF file, of SigLIP: its configuration, and its processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile
from corellm_quantization.gguf.vision import colours, layer_sizes, tokens_per_side

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
    vision = SiglipVisionConfig(**layer_sizes(file), vision_use_head=False)
    size = {"height": vision.image_size, "width": vision.image_size}
    images = Gemma3ImageProcessorPil(size=size, **colours(file))
    num_tokens = tokens_per_side(file, file.positive("clip.vision.projector.scale_factor", _SCALE)) ** 2
    processor = Gemma3Processor(images, named, image_seq_length=num_tokens, chat_template=named.chat_template)
    processor.save_pretrained(folder)
    return Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=num_tokens, boi_token_index=named.boi_token_id,
        eoi_token_index=named.eoi_token_id, image_token_index=named.image_token_id,
        tie_word_embeddings=text.tie_word_embeddings, architectures=["Gemma3ForConditionalGeneration"],
        dtype=text.dtype,
    )  # fmt: skip

"""LLaVA's tower in a GGUF file, of CLIP: its configuration, and its processor.

Files have the tower up to the layer whose output is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_IMAGE = "<image>"
_REFUSED = {
    "clip.vision.image_grid_pinpoints": "tiles of large images (LLaVA-NeXT)",
    "clip.vision.feature_layer": "outputs of chosen layers",
}


def configure(
    folder: Path, text: PreTrainedConfig, tokenizer: Any, model: GgufFile, file: GgufFile
) -> PreTrainedConfig:
    """See `tower.add_tower`. A token for images that the tokenizer lacks is of no row of the embedding."""
    from transformers import CLIPImageProcessorPil, CLIPVisionConfig, LlavaConfig, LlavaProcessor

    _check(file)
    size, patch = (file.value(f"clip.vision.{name}", int) for name in ("image_size", "patch_size"))
    if _IMAGE not in tokenizer.get_vocab():
        tokenizer.add_tokens([_IMAGE], special_tokens=True)
    vision = CLIPVisionConfig(
        hidden_size=file.value("clip.vision.embedding_length", int),
        intermediate_size=file.value("clip.vision.feed_forward_length", int),
        num_hidden_layers=file.count("clip.vision.block_count"),
        num_attention_heads=file.value("clip.vision.attention.head_count", int),
        layer_norm_eps=file.value("clip.vision.attention.layer_norm_epsilon", float),
        image_size=size,
        patch_size=patch,
        hidden_act="gelu" if file.value("clip.use_gelu", bool, default=False) else "quick_gelu",
    )
    mean, deviation = (file.value(f"clip.vision.image_{name}", list) for name in ("mean", "std"))
    images = CLIPImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}, image_mean=mean, image_std=deviation
    )
    processor = LlavaProcessor(
        images, tokenizer, patch_size=patch, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        image_token=_IMAGE, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    processor.save_pretrained(folder)
    return LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=tokenizer.convert_tokens_to_ids(_IMAGE),
        vision_feature_layer=-1, vision_feature_select_strategy="default", tie_word_embeddings=text.tie_word_embeddings,
        architectures=["LlavaForConditionalGeneration"], dtype=text.dtype,
    )  # fmt: skip


def _check(file: GgufFile) -> None:
    """Raise a CheckpointError for an encoder of another kind."""
    for key, what in _REFUSED.items():
        if key in file.stated:
            raise CheckpointError(f"{file.path}: {key}: {what} are not known; mmproj='none' runs the text model alone")
    if "v.class_embd" not in file.tensors:
        raise CheckpointError(f"{file.path}: a tower without v.class_embd is none of CLIP; mmproj='none' runs the text")

"""LLaVA's tower in a GGUF file, of CLIP: its configuration, and its processor.

Files have the tower up to the layer whose output is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile
from corellm_quantization.gguf.vision import colours, layer_sizes

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
    if _IMAGE not in tokenizer.get_vocab():
        tokenizer.add_tokens([_IMAGE], special_tokens=True)
    vision = CLIPVisionConfig(
        **layer_sizes(file),
        hidden_act="gelu" if file.value("clip.use_gelu", bool, default=False) else "quick_gelu",
    )
    size = vision.image_size
    images = CLIPImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}, **colours(file)
    )
    processor = LlavaProcessor(
        images, tokenizer, patch_size=vision.patch_size, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, image_token=_IMAGE, chat_template=tokenizer.chat_template,
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

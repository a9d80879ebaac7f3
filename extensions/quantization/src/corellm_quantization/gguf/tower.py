"""The encoder of images in a GGUF file of its own (mmproj): configuration and processor of the whole model.

Of LLaVA's kind: a CLIP tower, and two products. Files have the tower up to the layer whose output is used.
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


def add_tower(folder: Path, text: PreTrainedConfig, tokenizer: Any, file: GgufFile) -> PreTrainedConfig:
    """Write the processor of a text model with an encoder, and return their configuration.

    Args:
        folder: of the checkpoint.
        text: the text model's configuration.
        tokenizer: gets a token for images if it has none; it is of no row of the embedding.
        file: the encoder.

    Raises:
        CheckpointError: it is of another kind, or for another text model.
    """
    from transformers import CLIPImageProcessorPil, CLIPVisionConfig, LlavaConfig, LlavaProcessor

    _check(file)
    size, patch = (file.value(f"clip.vision.{name}", int) for name in ("image_size", "patch_size"))
    output = file.tensors.get("mm.2.weight")
    if output is None or output.shape[0] != text.hidden_size:
        width = "none" if output is None else output.shape[0]
        raise CheckpointError(
            f"{file.path}: its embeddings have the width {width}, the text model's {text.hidden_size}; take the "
            f"file of this model, or mmproj='none'"
        )
    if _IMAGE not in tokenizer.get_vocab():
        tokenizer.add_tokens([_IMAGE], special_tokens=True)
    vision = CLIPVisionConfig(
        hidden_size=file.value("clip.vision.embedding_length", int),
        intermediate_size=file.value("clip.vision.feed_forward_length", int),
        num_hidden_layers=file.value("clip.vision.block_count", int),
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
    kind = file.stated.get("clip.projector_type", "mlp" if file.stated.get("clip.has_llava_projector") else None)
    if file.architecture != "clip" or kind != "mlp":
        raise CheckpointError(
            f"{file.path}: encoders of the kind {kind!r:.60} are not known; those of LLaVA ('mlp') are; mmproj='none' "
            f"runs the text model alone"
        )
    for key, what in _REFUSED.items():
        if key in file.stated:
            raise CheckpointError(f"{file.path}: {key}: {what} are not known; mmproj='none' runs the text model alone")
    if "v.class_embd" not in file.tensors:
        raise CheckpointError(f"{file.path}: a tower without v.class_embd is none of CLIP; mmproj='none' runs the text")

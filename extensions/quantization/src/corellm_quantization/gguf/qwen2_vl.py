"""The towers of Qwen2-VL and Qwen2.5-VL in a GGUF file: their configuration, and their processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile
from corellm_quantization.gguf.vision import colours

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
_MERGED, _FRAMES = 2, 2
"""Side of a token in patches, and frames of a patch: of all published models."""
_WINDOW = 112
"""Side of a window of Qwen2.5-VL's tower in pixels, where the file does not say."""
_PIXELS = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}
"""Bounds on the pixels of an image, as published processors have them; files need not say."""


def configure(
    folder: Path, text: PreTrainedConfig, tokenizer: Any, model: GgufFile, file: GgufFile
) -> PreTrainedConfig:
    """See `tower.add_tower`."""
    from transformers import Qwen2_5_VLConfig, Qwen2VLConfig

    is_second = "v.blk.0.ffn_gate.weight" not in file.tensors
    generation = "Qwen2VL" if is_second else "Qwen2_5_VL"
    vocabulary = tokenizer.get_vocab()
    if absent := [token for token in _TOKENS.values() if token not in vocabulary]:
        raise CheckpointError(f"{model.path}: the tokenizer lacks {', '.join(absent)}; this is no Qwen2-VL")
    width, patch = (file.positive(f"clip.vision.{name}") for name in ("embedding_length", "patch_size"))
    up = file.tensors.get("v.blk.0.ffn_up.weight")
    if up is None or len(up.shape) != 2:
        raise CheckpointError(f"{file.path} lacks v.blk.0.ffn_up.weight")
    sections = [size for size in model.value("qwen2vl.rope.dimension_sections", list) if size]
    values = text.to_dict()
    for alone in ("architectures", "model_type", "quantization_config"):
        values.pop(alone, None)
    values["rope_parameters"] = {**values["rope_parameters"], "mrope_section": sections}
    common = {
        "patch_size": patch, "temporal_patch_size": _FRAMES, "merge_size": _MERGED, **colours(file),
    }  # fmt: skip
    sizes = {"shortest_edge": "image_min_pixels", "longest_edge": "image_max_pixels"}
    size = {name: file.positive(f"clip.vision.{key}", _PIXELS[name]) for name, key in sizes.items()}
    for name, kind in (("preprocessor", "image"), ("video_preprocessor", "video")):
        stated = common | {"size": size, f"{kind}_processor_type": f"Qwen2VL{kind.title()}Processor"}
        stated |= {"processor_class": f"{generation}Processor"}
        (folder / f"{name}_config.json").write_text(json.dumps(stated))
    vision = {
        "depth": file.count("clip.vision.block_count"),
        "num_heads": file.positive("clip.vision.attention.head_count"),
        "patch_size": patch,
        "spatial_merge_size": _MERGED,
        "temporal_patch_size": _FRAMES,
    }
    if is_second:
        vision |= {"embed_dim": width, "hidden_size": text.hidden_size, "mlp_ratio": max(up.shape) // width}
    else:
        vision |= {"hidden_size": width, "out_hidden_size": text.hidden_size, "intermediate_size": up.shape[0]}
        vision |= _windows(file, vision["depth"], patch)
    return (Qwen2VLConfig if is_second else Qwen2_5_VLConfig)(
        text_config=values,
        vision_config=vision,
        **{name: vocabulary[token] for name, token in _TOKENS.items()},
        tie_word_embeddings=text.tie_word_embeddings,
        architectures=[f"{generation}ForConditionalGeneration"],
        dtype=text.dtype,
    )  # fmt: skip


def _windows(file: GgufFile, depth: int, patch: int) -> dict[str, Any]:
    """Return which layers of Qwen2.5-VL's tower see all of an image, and what the others see, in pixels."""
    every, size = file.positive("clip.vision.n_wa_pattern"), file.positive("clip.vision.window_size", _WINDOW)
    if size < patch * _MERGED:
        raise CheckpointError(f"{file.path}: a window of {size} pixels has no tokens of {_MERGED} patches of {patch}")
    return {"window_size": size, "fullatt_block_indexes": [*range(every - 1, depth, every)]}

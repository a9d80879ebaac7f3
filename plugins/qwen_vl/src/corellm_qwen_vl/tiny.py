"""Tiny random Qwen2-VL, Qwen2.5-VL and Qwen3-VL checkpoints, made without downloads: for tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, randomize_weights, spare, train_tokenizer, write_json

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
_GENERATIONS = {
    "Qwen2VLForConditionalGeneration": "Qwen2VL",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2_5_VL",
    "Qwen3VLForConditionalGeneration": "Qwen3VL",
}
"""What the names of their classes in transformers begin with."""
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "other image and video tokens": {"spare_tokens": 3},
    "sixteen patches a token": {"merge_size": 4},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each, in all generations."""
LONG: Mapping[str, Any] = {"max_frames": 600}
"""Arguments of `make_tiny_checkpoint` for videos of more than 255 pairs of frames."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    architecture: str = "Qwen2VLForConditionalGeneration",
    hidden_size: int = 64,
    num_layers: int = 3,
    merge_size: int = 2,
    max_frames: int = 16,
    spare_tokens: int = 0,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        architecture: the generation, as `config.json` names it.
        hidden_size: of the text model; a multiple of 32.
        num_layers: of the text model; Qwen3-VL's deepstack features join it after the first two.
        merge_size: side of a token, in patches.
        max_frames: of a video; longer ones are sampled.
        spare_tokens: special tokens without a use, which shift the ids of the family's.
    """
    import transformers

    generation = _GENERATIONS[architecture]
    special_tokens = [*spare(spare_tokens), "<|im_start|>", "<|im_end|>", *_TOKENS.values()]
    tokenizer = train_tokenizer(special_tokens, eos="<|im_end|>", pad="<|endoftext|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    text = decoder_settings(
        tokenizer,
        hidden_size,
        num_layers,
        num_attention_heads=hidden_size // 16,
        num_key_value_heads=hidden_size // 32,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.pad_token_id,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    )
    if generation == "Qwen3VL":
        text |= {"head_dim": 16}
        text["rope_parameters"] |= {"mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = getattr(transformers, f"{generation}Config")(
        text_config=text,
        vision_config=_vision(generation, hidden_size, merge_size),
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in _TOKENS.items()},
    )
    model = getattr(transformers, f"{generation}ForConditionalGeneration")(config)
    randomize_weights(model, seed)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    write_json(path, _processors(generation, merge_size, max_frames))
    return Path(path)


def _vision(generation: str, hidden_size: int, merge_size: int) -> dict[str, Any]:
    """A tower of two or three layers."""
    size = {"hidden_size": 64, "num_heads": 4, "spatial_merge_size": merge_size, "temporal_patch_size": 2}
    if generation == "Qwen2VL":  # its hidden_size is what comes out
        return size | {"hidden_size": hidden_size, "depth": 2, "embed_dim": 64, "mlp_ratio": 2, "patch_size": 14}
    size |= {"intermediate_size": 128, "out_hidden_size": hidden_size}
    if generation == "Qwen2_5_VL":
        return size | {"depth": 2, "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]}
    return size | {"depth": 3, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}


def _processors(generation: str, merge_size: int, max_frames: int) -> dict[str, dict[str, Any]]:
    """The processor files by name: up to 64 patches for an image, and some 24 for a pair of frames."""
    third = generation == "Qwen3VL"
    patch = 16 if third else 14
    common = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": merge_size, **(_HALF if third else _CLIP)}
    token = (2 * patch) ** 2  # pixels of four patches
    video = {"shortest_edge": 8 * token, "longest_edge": 48 * token}  # of all frames together
    if not third:
        video = {"shortest_edge": 2 * token, "longest_edge": 6 * token}  # of a frame
    return {
        "preprocessor_config.json": {
            **common,
            "size": {"shortest_edge": 4 * token, "longest_edge": 16 * token},
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": f"{generation}Processor",
        },
        "video_preprocessor_config.json": {
            **common,
            "size": video,
            "max_frames": max_frames,
            "video_processor_type": "Qwen3VLVideoProcessor" if third else "Qwen2VLVideoProcessor",
        },
    }

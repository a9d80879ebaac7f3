"""What each kind of model needs beside the recipe, to be made tiny: a line or two.

Knows names of configurations, nothing of how they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What differs from the recipe."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model's configuration, nested as it is."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the processor."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its image processor."""
    audio: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its feature extractor."""
    video: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its video processor."""
    processor_class: str | None = None
    image_processor: str | None = None
    video_processor: str | None = None
    feature_extractor: str | None = None
    """Where transformers' mappings name none."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """`{attribute of the tokenizer: special token, or nothing where it has none}`."""
    token_ids: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """`{attribute of the configuration: the token, or tokens, whose ids it is}`, where the processor's name differs."""
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its tokenizer; transformers gives those of a processor's arguments' names to the processor."""
    more_tokens: tuple[str, ...] = ()
    """Special tokens without such an attribute."""
    last_tokens: tuple[str, ...] = ()
    """Special tokens that come after all others."""
    add_bos: bool = True
    """Whether its tokenizer begins every text with a token."""
    marks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """`{modality: the tokens that the chat template writes around an item}`."""
    seed: int = 0
    """A number added to the weights' seed, where those of seed 0 make too many outputs begin alike."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """`{what a parameter's name ends with, as a regular expression: what it is multiplied by}`, of encoder-decoders."""
    vocabulary_map: bool = False
    """Whether its configuration has the tokenizer's vocabulary."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Settings of an encoder-decoder's generation configuration; tokens in them are named by their text."""


_GRID = [[56, 112], [112, 56], [112, 112]]
_PINPOINTS = {"image_grid_pinpoints": _GRID}
_LLAVA_NEXT = Kind(
    config={**_PINPOINTS, "vision_feature_layer": -1},
    processor={"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    parts={**_PINPOINTS, "size": {"shortest_edge": 56}},
)
_PIXELS = {"size": {"shortest_edge": 4 * 28**2, "longest_edge": 40 * 28**2}}


def _mrope(*section: int, factor: float = 1.0, **more: Any) -> dict[str, Any]:
    """M-RoPE of a text decoder whose default sections are not in its configuration."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": list(section)}
    return {"text_config": {"rope_parameters": {**rope, "partial_rotary_factor": factor}, **more}}


_GLM_VIDEO: dict[str, Any] = {
    "more_tokens": ("<|begin_of_video|>", "<|end_of_video|>", "<|begin_of_image|>", "<|end_of_image|>"),
    "marks": {"video": ("<|begin_of_video|>", "<|end_of_video|>")},
}
_OVIS = ("<IMG_START>", "<IMG_ATOM>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
_INTERN = Kind(
    processor={"image_seq_length": 4},
    config={"image_seq_length": 4, "vision_config": {"image_size": [56, 56], "patch_size": [14, 14]}},
    parts={"max_patches": 4, "size": {"height": 56, "width": 56}},
)


def _omni(processor_class: str, config: Mapping[str, Any]) -> Kind:
    """A model of text, images and audio, or one with speech beside it."""
    return Kind(
        processor_class=processor_class,
        image_processor="Qwen2VLImageProcessorPil",
        video_processor="Qwen2VLVideoProcessor",
        feature_extractor="WhisperFeatureExtractor",
        config=config,
        token_ids={
            "vision_start_token_id": "<vision_bos>",
            "vision_end_token_id": "<vision_eos>",
            "audio_start_token_id": "<audio_bos>",
            "audio_end_token_id": "<audio_eos>",
        },
        audio={"feature_size": 128},
        marks={"image": ("<vision_bos>", "<vision_eos>"), "audio": ("<audio_bos>", "<audio_eos>")},
    )


_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
"""Sizes of a part that is not in the default configuration."""
_VQ = {"base_channels": 32, "embed_dim": 32, "latent_channels": 32, "num_res_blocks": 1}


def _digits(code: int) -> str:
    """A number as Chameleon's tokens have it: letters for digits."""
    return "".join(chr(ord("A") + int(digit)) for digit in str(code))


_GEMMA4 = Kind(
    config={
        "text_config": {
            "global_head_dim": 32,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "sliding_window": 24,
        },
        "vision_config": {**_SIZES, "patch_size": 14, "pooling_kernel_size": 3, "position_embedding_size": 640},
    },
    parts={"max_soft_tokens": 70},
    video={"num_frames": 2},
)

_MISTRAL3 = Kind(processor={"image_token": "[IMG]", "spatial_merge_size": 2}, parts={"size": {"longest_edge": 112}})
_INKLING2_TEXT = {
    "unpadded_vocab_size": 460,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": 24,
    "n_layers_per_attn_res_block": 1,
}

_MINICPM = Kind(
    config={"insert_layer_id": 0},
    parts={"scale_resolution": 112, "slice_mode": False},  # transformers' model takes slices of one size only
    tokens={
        name: f"<{name}>"
        for name in ("slice_start_token", "slice_end_token", "image_id_start_token", "image_id_end_token")
    },
)

KINDS: Mapping[str, Kind] = {
    "Apertus1p5ForConditionalGeneration": Kind(
        config={
            "vision_config": {**_VQ, "channel_multiplier": [1, 1, 1, 1, 1], "codebook_size": 16},
            "audio_config": {"codebook_dim": 64, "codebook_size": 16, "num_filters": 4},
            "image_token_offset": 100,
            "audio_token_offset": 116,
        },
        seed=1,
        parts={"size": {"min_pixels": 48**2, "max_pixels": 80**2}},
        more_tokens=tuple(f"<|{name} token {code}|>" for name in ("visual", "audio") for code in range(16)),
        token_ids={"image_token_offset": "<|visual token 0|>", "audio_token_offset": "<|audio token 0|>"},
    ),
    "AriaForConditionalGeneration": Kind(
        config={"text_config": {"max_position_embeddings": 4096, "num_hidden_layers": 3}},
        parts={"max_image_size": 490},
    ),
    "AyaVisionForConditionalGeneration": Kind(
        processor={"img_size": 56, "patch_size": 14, "downsample_factor": 2},
        config={"downsample_factor": 2, "alignment_intermediate_size": 128},
        parts={"max_patches": 4},
    ),
    "ChameleonForConditionalGeneration": Kind(
        config={"vq_config": {**_VQ, "channel_multiplier": [1, 1, 1, 1], "num_embeddings": 16, "resolution": 56}},
        processor={"image_seq_length": 49},
        parts={"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
        tokens={
            "image_token": "<image>",
            "boi_token": "<racm3:break>",
            "eoi_token": "<eoss>",
            "sep_token": "<reserved08706>",
        },
        more_tokens=tuple(f"IMGIMG{_digits(code)}Z" for code in range(16)),
        vocabulary_map=True,
    ),
    "CohereCompassForConditionalGeneration": Kind(
        config={
            "text_config": {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [3, 3, 2]},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [3, 3, 2]},
                }
            }
        },
        more_tokens=("<|IMAGE_PAD|>", "<|VIDEO_PAD|>", "<|VISION_START|>", "<|VISION_END|>"),
        tokens={
            "image_token": "<|IMAGE_PAD|>",
            "video_token": "<|VIDEO_PAD|>",
            "vision_start_token": "<|VISION_START|>",
            "vision_end_token": "<|VISION_END|>",
        },
        parts=_PIXELS,
    ),
    "Cosmos3OmniForConditionalGeneration": Kind(
        processor_class="Qwen3VLProcessor", image_processor="Qwen2VLImageProcessorPil"
    ),
    "DeepseekOcr2ForConditionalGeneration": Kind(
        config={
            "vision_config": {
                "sam_config": {
                    "image_size": 256,
                    "patch_size": 4,
                    "global_attn_indexes": [],
                    "output_channels": 32,
                    "downsample_channels": [48, 64],
                },
            },
            "text_config": {
                "mlp_layer_types": ["dense", "sparse", "sparse"],
                "num_hidden_layers": 3,
                "num_experts_per_tok": 2,
                "max_position_embeddings": 4096,
            },
        },
        processor={"patch_size": 4},
        parts={"size": {"height": 256, "width": 256}, "tile_size": 192, "max_patches": 2},
    ),
    "DeepseekVLHybridForConditionalGeneration": Kind(
        config={
            "high_res_vision_config": {
                "image_size": 128,
                "patch_size": 4,
                "output_channels": 64,
                "global_attn_indexes": [0, 1],
            }
        },
        parts={"high_res_size": {"height": 128, "width": 128}},
    ),
    "DiffusionGemmaForBlockDiffusion": replace(
        _GEMMA4,
        config={
            "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32, "global_head_dim": 16},
            "vision_config": _GEMMA4.config["vision_config"],
        },
        image_processor="Gemma4ImageProcessorPil",
        video_processor="Gemma4VideoProcessor",
        feature_extractor="Gemma4AudioFeatureExtractor",
    ),
    "Emu3ForConditionalGeneration": Kind(
        config={"vq_config": {**_VQ, "channel_multiplier": [1, 1, 1, 1], "codebook_size": 16, "hidden_size": 32}},
        add_bos=False,
        parts={"min_pixels": 48**2, "max_pixels": 80**2},
        more_tokens=("<|extra_200|>", *(f"<|visual token {code:06}|>" for code in range(16))),
        vocabulary_map=True,
    ),
    "Gemma3ForConditionalGeneration": Kind(
        processor={"image_seq_length": 4},
        config={"mm_tokens_per_image": 4},
        tokens={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
    ),
    "Gemma3nForConditionalGeneration": Kind(
        config={
            "vision_soft_tokens_per_image": 4,
            "text_config": {
                "intermediate_size": 128,
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_kv_shared_layers": 2,
                "sliding_window": 24,
                "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
                "vocab_size_per_layer_input": 460,
            },
            "vision_config": {
                "hidden_size": 2048,
                "vocab_offset": 460,
                "vocab_size": 2,
                "model_args": {"channel_multiplier": 0.0125, "msfa_output_resolution": 2},
            },
            "audio_config": {
                "vocab_offset": 462,
                "vocab_size": 2,
                "conf_num_attention_heads": 4,
                "conf_num_hidden_layers": 2,
                "sscp_conv_channel_size": [16, 8],
            },
        },
        processor={"image_seq_length": 4},
        parts={"size": {"height": 64, "width": 64}},
        last_tokens=("<eoi>", "<image>", "<eoa>", "<audio>"),
        seed=1,
    ),
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Glm5NextForConditionalGeneration": Kind(
        config={
            "text_config": {
                "num_key_value_heads": 4,
                "head_dim": 0,
                "qk_rope_head_dim": 0,
                "linear_num_heads": 4,
                "index_kpool": 4,
            }
        }
    ),
    "GlmAsrForConditionalGeneration": Kind(audio={"feature_size": 128}),
    "Glm46VForConditionalGeneration": Kind(config=_mrope(2, 3, 3)),
    "Glm4vForConditionalGeneration": Kind(config=_mrope(2, 3, 3), **_GLM_VIDEO),
    "Glm4vMoeForConditionalGeneration": Kind(
        config=_mrope(1, 1, 2, factor=0.5),
        image_processor="Glm4vImageProcessorPil",
        video_processor="Glm4vVideoProcessor",
    ),
    "GlmOcrForConditionalGeneration": Kind(
        config=_mrope(2, 3, 3),
        processor_class="Glm46VProcessor",
        image_processor="Glm46VImageProcessorPil",
        video_processor="Glm46VVideoProcessor",
    ),
    "GotOcr2ForConditionalGeneration": Kind(
        more_tokens=("<imgpad>", "<img>", "</img>"),
        config={
            "vision_config": {"image_size": 256, "patch_size": 4, "output_channels": 64},
            "text_config": {"max_position_embeddings": 4096},
        },
        parts={"size": {"height": 256, "width": 256}},
    ),
    "InklingForConditionalGeneration": Kind(
        config={
            "text_config": {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16},
            "audio_config": {"text_hidden_size": 64},
            "vision_config": {"text_hidden_size": 64, "patch_size": 40},
        },
        parts={"size": {"height": 40, "width": 40}},
        more_tokens=("<|content_image|>", "<|content_audio_input|>"),
        seed=1,
    ),
    "Kosmos2ForConditionalGeneration": Kind(
        processor_class="Kosmos2Processor",
        config={"text_config": {"layers": 2}, "latent_query_num": 16},
        processor={"num_patch_index_tokens": 16},
    ),
    "Kosmos2_5ForConditionalGeneration": Kind(
        processor_class="Kosmos2_5Processor", config={"text_config": {"layers": 2}, "latent_query_num": 16}
    ),
    "KyutaiSpeechToTextForConditionalGeneration": Kind(
        config={
            "audio_pad_token_id": 1,
            "codebook_vocab_size": 33,
            "codec_config": {"num_filters": 16, "upsample_groups": 64},
        }
    ),
    "LlavaNextForConditionalGeneration": _LLAVA_NEXT,
    "LlavaNextVideoForConditionalGeneration": _LLAVA_NEXT,
    "LlavaOnevisionForConditionalGeneration": Kind(
        config={**_PINPOINTS, "vision_feature_layer": -1, "vision_aspect_ratio": "anyres_max_4"},
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        parts={**_PINPOINTS, "size": {"height": 56, "width": 56}},
    ),
    "Granite4VisionForConditionalGeneration": Kind(
        config={
            **_PINPOINTS,
            "vision_config": {"model_type": "siglip_vision_model"},
            "text_config": {"model_type": "granite4_vision_text"},
            "qformer_config": {"model_type": "blip_2_qformer", "num_hidden_layers": 1},
            "vision_feature_select_strategy": "full",
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[-1, 0]],
            "spatial_target_layers": [1],
        },
        processor={"vision_feature_select_strategy": "full", "downsample_rate": "1/2"},
        parts={**_PINPOINTS, "size": {"height": 56, "width": 56}},
    ),
    "HunYuanVLForConditionalGeneration": Kind(
        add_bos=False,
        config={
            "text_config": {
                "head_dim": 16,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 2, 2, 2]},
            }
        },
    ),
    "InternVLForConditionalGeneration": _INTERN,
    "Idefics3ForConditionalGeneration": Kind(
        processor={"image_seq_len": 4},
        parts={"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}},
        config={"scale_factor": 2, "pad_token_id": 2},
    ),
    "SmolVLMForConditionalGeneration": Kind(
        processor={"image_seq_len": 4},
        parts={"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}},
        video={"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 56}, "num_frames": 4},
        config={"scale_factor": 2, "pad_token_id": 2},
    ),
    "PaddleOCRVLForConditionalGeneration": Kind(config=_mrope(2, 3, 3)),
    "Ernie4_5_VLMoeForConditionalGeneration": Kind(config=_mrope(3, 3, 2), video={"draw_on_frames": False, **_PIXELS}),
    "Ovis2ForConditionalGeneration": Kind(
        processor={"image_seq_length": 16},
        more_tokens=_OVIS,
        token_ids={"image_token_id": "<IMG_ATOM>", "visual_indicator_token_ids": (_OVIS[0], *_OVIS[2:])},
    ),
    "MiniCPMV4_6ForConditionalGeneration": _MINICPM,
    "MiniCPMV4_7ForConditionalGeneration": _MINICPM,
    "MiniCPMOcrForConditionalGeneration": replace(
        _MINICPM, config={"insert_layer_id": 0, "text_config": {"max_position_embeddings": 4096}}, seed=1
    ),
    "Mistral3ForConditionalGeneration": _MISTRAL3,
    "MllamaForConditionalGeneration": Kind(
        config={"vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192}}
    ),
    "Phi4MultimodalForCausalLM": Kind(
        config={
            "audio_config": {
                "num_blocks": 2,
                "ext_pw_out_channel": 64,
                "depthwise_separable_out_channel": 64,
                "nemo_conv_channels": 64,
            },
            # the processor counts 16 rows of 16 tokens for a crop, whatever its size
            "vision_config": {"image_size": 128, "patch_size": 4, "crop_size": 128},
        },
        parts={"size": {"height": 128, "width": 128}, "patch_size": 4, "dynamic_hd": 2},
    ),
    "PaliGemmaForConditionalGeneration": Kind(parts={"image_seq_length": 16}),
    "Qwen2_5OmniThinkerForConditionalGeneration": _omni("Qwen2_5OmniProcessor", _mrope(2, 3, 3)),
    "Qwen2_5OmniForConditionalGeneration": _omni(
        "Qwen2_5OmniProcessor", {"thinker_config": _mrope(2, 3, 3), "enable_audio_output": False}
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": _omni("Qwen3OmniMoeProcessor", _mrope(2, 3, 3)),
    "Qwen3OmniMoeForConditionalGeneration": _omni(
        "Qwen3OmniMoeProcessor", {"thinker_config": _mrope(2, 3, 3), "enable_audio_output": False}
    ),
    "QianfanOCRForConditionalGeneration": Kind(
        config={"vision_config": {"image_size": [56, 56], "patch_size": [14, 14]}},
        processor={"image_seq_length": 4},
        more_tokens=("<image>",),
        parts={"max_patches": 4, "size": {"height": 56, "width": 56}},
    ),
    "Qwen3VLMoeForConditionalGeneration": Kind(image_processor="Qwen2VLImageProcessorPil"),
    "Qwen3_5ForConditionalGeneration": Kind(seed=1),
    "Qwen3_5MoeForConditionalGeneration": Kind(seed=1),
    "Qwen4ExpForConditionalGeneration": Kind(
        config={
            "text_config": {
                "indexer_n_heads": 2,
                "indexer_kv_heads": 1,
                "indexer_head_dim": 16,
                "indexer_budget": 32,
                "indexer_compress_ratio": 4,
                "ngram_vocab_size_base": 100,
                "hc_lowrank": 8,
                "split_ngram_parts": 1,
            }
        }
    ),
    "T5Gemma2ForConditionalGeneration": Kind(
        tokens={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
        processor={"image_seq_length": 4},
        config={"encoder": {"mm_tokens_per_image": 4}},
    ),
    "VibeVoiceAsrForConditionalGeneration": Kind(
        config={
            f"{name}_tokenizer_encoder_config": {
                "num_filters": 4,
                "depths": [1, 1, 1, 1, 1, 1, 1],
                "hidden_size": 16,
            }
            for name in ("acoustic", "semantic")
        },
        add_bos=False,
    ),
    "VipLlavaForConditionalGeneration": Kind(
        config={"vision_feature_layers": [-1, -2]},
        processor={"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    ),
    "Cohere2VisionForConditionalGeneration": Kind(
        # tokens of a tile, `patch_size**2`, are (height of a tile / the encoder's patch / downsample factor)**2
        config={"alignment_intermediate_size": 128},
        parts={"patch_size": 2},
    ),
    "Dots3NoteForConditionalGeneration": Kind(
        config={
            "text_config": {
                "num_key_value_heads": 4,
                "sliding_window": 24,
                "shared_experts_intermediate_size": 32,
                "index_head_dim": 16,
                "index_n_heads": 2,
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 4,
                "swa_q_lora_rank": 32,
                "swa_kv_lora_rank": 32,
                "swa_head_dim": 32,
                "swa_qk_nope_head_dim": 16,
                "swa_v_head_dim": 16,
            },
            "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64},
            "audio_config": {
                "adapter_input_size": 64,
                "adapter_out_dim": 64,
                "downsample_hidden_size": 16,
                "conv_output_size": 256,
            },
        },
        parts={"temporal_patch_size": 1},
        more_tokens=("<|imgpad|>", "<|video_pad|>", "<|audio_comp_pad|>"),
    ),
    "FastVlmForConditionalGeneration": Kind(
        processor_class="LlavaProcessor",
        image_processor="CLIPImageProcessorPil",
        config={
            "image_seq_length": 4,
            "vision_config": {"model_args": {"layers": [1] * 5, "embed_dims": [8, 8, 16, 32, 32]}},
        },
        processor={"patch_size": 64, "vision_feature_select_strategy": "full"},
        parts={"size": {"shortest_edge": 128}, "crop_size": {"height": 128, "width": 128}},
    ),
    "FunAsrNanoForConditionalGeneration": Kind(
        config={
            "adaptor_config": {"intermediate_size": 16},
            "audio_config": {"max_position_embeddings": 2049, "num_timestamp_prediction_layers": 1},
        }
    ),
    "Gemma4UnifiedForConditionalGeneration": Kind(
        config={
            "text_config": {"global_head_dim": 32, "sliding_window": 24},
            "vision_config": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 64, "output_proj_dims": 64},
            "audio_config": {"model_type": "gemma4_unified_audio"},
        },
        parts={"max_soft_tokens": 70},
        video={"num_frames": 2},
        seed=1,
    ),
    "GraniteDoclingForConditionalGeneration": Kind(
        config={
            "vision_config": {"scale_factor": 2},
            "text_config": {"embedding_multiplier": 2.0, "residual_multiplier": 0.9},
        },
        processor={"image_seq_len": 4},
        more_tokens=(
            *("<fake_token_around_image>", "<global-img>"),
            *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
        ),
    ),
    "GraniteSpeechForConditionalGeneration": Kind(
        config={"encoder_config": {"hidden_dim": 64, "dim_head": 16}, "has_lora_adapter": False}
    ),
    "GraniteSpeechPlusForConditionalGeneration": Kind(
        config={
            "encoder_config": {"hidden_dim": 64, "dim_head": 16, "cat_hidden_layers": [1]},
            "projector_config": {"encoder_hidden_size": 128},
            "has_lora_adapter": False,
        }
    ),
    "Inkling2ForConditionalGeneration": Kind(
        config={
            "text_config": _INKLING2_TEXT,
            "vision_config": {"text_hidden_size": 64, "projection_hidden_dim": 64},
        },
        parts={"size": {"height": 28, "width": 28}},
    ),
    "Inkling2LoopForConditionalGeneration": Kind(
        config={
            "text_config": {
                **_INKLING2_TEXT,
                "num_hidden_layers": 3,
                "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
                "loop_layer_index_start": 1,
                "loop_layer_index_end": 2,
            },
            "vision_config": {"text_hidden_size": 64, "projection_hidden_dim": 64},
        },
        parts={"size": {"height": 28, "width": 28}},
    ),
    "Kimi_K25ForConditionalGeneration": Kind(
        config={
            "projection_hidden_size": 64,
            "text_config": {"n_group": 1, "topk_group": 1, "num_key_value_heads": 4},
            "vision_config": {"pos_emb_height": 8, "pos_emb_width": 8},
        },
    ),
    "Lfm2VlForConditionalGeneration": Kind(
        config={"vision_config": {"num_patches": 16}, "text_config": {"layer_types": ["conv", "full_attention"]}},
        parts={
            "encoder_patch_size": 14,
            "tile_size": 56,
            "min_image_tokens": 1,
            "max_image_tokens": 72,
            "max_tiles": 4,
            "max_pixels_tolerance": 0.15,
        },
        tokens={
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_thumbnail_token": "<|img_thumbnail|>",
        },
        more_tokens=tuple(f"<|img_row_{row}_col_{col}|>" for row in range(1, 5) for col in range(1, 5)),
    ),
    "MiniMaxM3SparseForConditionalGeneration": Kind(
        config={
            "text_config": {
                "mlp_layer_types": ["dense", "sparse"],
                "layer_types": ["full_attention", "minimax_m3_sparse"],
                "index_n_heads": 2,
                "index_head_dim": 16,
                "index_block_size": 64,
                "dense_intermediate_size": 128,
                "shared_intermediate_size": 32,
            }
        },
        tokens={"image_token": "]<]image[>[", "video_token": "]<]video[>["},
        more_tokens=("]<]start of image[>[", "]<]end of image[>["),
    ),
    "Molmo2ForConditionalGeneration": Kind(
        config={
            "vision_config": {"image_size": [56, 56], "num_position_embeddings": 16},
            "adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": 64},
        },
        parts={"overlap_margins": [1, 1], "max_crops": 4},
        tokens={"image_token": "<|image|>", "video_token": "<|video|>"},
        token_ids={"image_patch_id": "<im_patch>"},
        more_tokens=(
            *("<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>"),
            *("<frame_start>", "<im_end>", "<frame_end>", "<im_low>"),
        ),
        add_bos=False,  # its processor does
    ),
    "MuseGlimmerForConditionalGeneration": Kind(
        config={
            "out_hidden_size": 256,
            "text_config": {"layer_rope_theta": [10_000.0, 0], "sliding_window": 24},
        },
        parts={"max_image_tokens": 64},
        tokens={"image_token": "<|patch|>", "video_token": "<|video|>"},
        more_tokens=("<|image_start|>", "<|image_end|>", "<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>"),
    ),
    "MuseSparkForConditionalGeneration": Kind(
        config={
            "text_config": {"sliding_window": 24, "moe_hidden_size": 32},
            "vision_config": {"pos_emb_height": 4, "pos_emb_width": 4},
            "audio_config": {"num_hidden_layers": 4, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
            "out_hidden_size": 256,
        },
        parts={"max_image_tokens": 16},
    ),
    "PerceptionLMForConditionalGeneration": Kind(
        config={
            "projector_pooling_ratio": 2,
            "vision_config": {
                "architecture": "vit_pe_core_large_patch14_336",
                "do_pooling": False,
                "model_args": {
                    "embed_dim": 64,
                    "depth": 2,
                    "num_heads": 4,
                    "img_size": [56, 56],
                    "ref_feat_shape": [4, 4],
                    "global_pool": "",
                    "init_values": 0.1,
                    "use_post_transformer_norm": False,
                },
            },
        },
        # of 9 tiles two small images differ in number; transformers' processor takes no such two in a prompt
        parts={"tile_size": 56, "max_num_tiles": 9},
    ),
    "Step3p7ForConditionalGeneration": Kind(
        config={
            "vision_config": {"image_size": 224},
            "text_config": {
                "layer_types": ["full_attention", "sliding_attention"],
                "mlp_layer_types": ["dense", "sparse"],
                "sliding_window": 24,
                "share_expert_dim": 32,
            },
        },
        parts={"size": {"height": 224, "width": 224}, "patch_size": 112},
        more_tokens=("<im_patch>", "<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"),
    ),
    "MistralLarge4ForConditionalGeneration": replace(
        _MISTRAL3,
        config={
            "text_config": {
                "num_key_value_heads": 4,
                "kv_source_layers": [0, 1],
                "index_head_dim": 16,
                "index_n_heads": 2,
            }
        },
    ),
    "Llama4ForConditionalGeneration": Kind(
        config={
            "vision_config": {
                "intermediate_size": 256,
                "vision_output_dim": 64,
                "projector_input_dim": 64,
                "projector_output_dim": 64,
            },
            "text_config": {
                "intermediate_size_mlp": 128,
                "num_experts_per_tok": 1,
                "moe_layers": [1],
                "no_rope_layers": [1, 0],
                "attention_chunk_size": 16,
                "floor_scale": 16,
            },
        },
        token_ids={"image_token_index": "<|patch|>"},
        parts={"max_patches": 4},
    ),
    "UnlimitedOcrForConditionalGeneration": Kind(
        config={
            "vision_config": {
                "sam_config": {
                    "image_size": 64,
                    "patch_size": 4,
                    "global_attn_indexes": [1],
                    "output_channels": 32,
                    "downsample_channels": [48, 64],
                },
            },
            "text_config": {"mlp_layer_types": ["dense", "sparse"], "num_key_value_heads": 4, "sliding_window": 8},
        },
        processor={"patch_size": 4},
        parts={"size": {"height": 64, "width": 64}, "tile_size": 48},
    ),
}
"""`{architecture: what it needs}`; most need nothing."""

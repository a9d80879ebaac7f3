"""What encoder-decoders need beside the recipe, to be made tiny: as in `kinds`, and what `generate` begins with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from corellm_transformers.tiny.kinds import Kind

_SPEECH: dict[str, Any] = {"max_source_positions": 100, "max_target_positions": 512, "num_mel_bins": 16}
_WHISPER = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>", "<|startofprev|>",
    "<|notimestamps|>", *(f"<|{step / 50:.2f}|>" for step in range(101)),
)  # fmt: skip
"""As in published vocabularies: behind the text's tokens the one that ends it, and last the times."""
_COHERE = tuple(
    f"<|{name}|>"
    for name in (
        "startofcontext", "startoftranscript", "emo:undefined", "en", "de", "pnc", "nopnc", "noitn", "notimestamp",
        "nodiarize",
    )
)  # fmt: skip
_FEW_CHANNELS = {"encoder_config": {"subsampling_conv_channels": 16}}
"""Of Parakeet's convolutions, which see each frame of the audio."""
_PARAKEET = {
    r"subsampling\.layers\.\d+\.weight": 6.0,  # else biases of its convolutions outweigh the audio
    r"self_attn\.q_proj\.weight": 3.0,
    r"self_attn\.o_proj\.weight": 2.0,
    r"encoder_attn\.o_proj\.weight": 0.6,
    r"pos_emb\.weight": 3.0,
}
_SEAMLESS = {
    "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 128,
}
_START = {"decoder_start_token_id": "</s>"}

ENCODER_DECODERS: dict[str, Kind] = {
    "WhisperForConditionalGeneration": Kind(
        config=_SPEECH,
        audio={"feature_size": 16, "chunk_length": 2},
        more_tokens=_WHISPER,
        last_tokens=_WHISPER,
        add_bos=False,
        generation={
            "decoder_start_token_id": "<|startoftranscript|>",
            "eos_token_id": "<|endoftext|>",
            "max_initial_timestamp_index": 50,
            "is_multilingual": True,
            "lang_to_id": {"<|en|>": "<|en|>", "<|de|>": "<|de|>"},
            "task_to_id": {"transcribe": "<|transcribe|>", "translate": "<|translate|>"},
            "no_timestamps_token_id": "<|notimestamps|>",
            "prev_sot_token_id": "<|startofprev|>",
            "return_timestamps": False,
            "language": "german",
            "suppress_tokens": [_WHISPER[1], *_WHISPER[4:7], "a", "e"],
        },
    ),
    "MoonshineForConditionalGeneration": Kind(
        config={
            f"{part}_{name}": value
            for part in ("encoder", "decoder")
            for name, value in {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}.items()
        },
        generation=_START,
    ),
    "Speech2TextForConditionalGeneration": Kind(
        config={"max_source_positions": 600, "max_target_positions": 512, "input_feat_per_channel": 16},
        audio={"feature_size": 16, "num_mel_bins": 16},
        generation=_START,
    ),
    "SeamlessM4TForSpeechToText": Kind(config=_SEAMLESS, generation=_START),
    "SeamlessM4Tv2ForSpeechToText": Kind(
        seed=1, config=_SEAMLESS, processor_class="SeamlessM4TProcessor", generation=_START
    ),
    "CanaryForConditionalGeneration": Kind(
        feature_extractor="ParakeetFeatureExtractor",
        audio={"feature_size": 128},
        config=_FEW_CHANNELS,
        spread=_PARAKEET,
        generation=_START,
    ),
    "CohereAsrForConditionalGeneration": Kind(
        more_tokens=("▁", *_COHERE),
        audio={"feature_size": 128},
        config=_FEW_CHANNELS,
        spread=_PARAKEET,
        generation=_START,
    ),
    "MoonshineStreamingForConditionalGeneration": Kind(
        feature_extractor="Wav2Vec2FeatureExtractor",
        config={
            "encoder_config": {"sliding_windows": [[16, 4], [16, 0]]},
            "num_key_value_heads": 4,
            "max_position_embeddings": 4096,  # of states, too
        },
        generation=_START,
    ),
    "VisionEncoderDecoderModel": Kind(
        config={
            "encoder": {
                "model_type": "donut-swin",
                "image_size": [64, 64],
                "patch_size": 4,
                "embed_dim": 16,
                "depths": [1, 1, 1],
                "num_heads": [1, 2, 4],
                "window_size": 4,
            },
            "decoder": {
                "model_type": "mbart",
                "is_decoder": True,
                "add_cross_attention": True,
                "scale_embedding": True,
            },
        },
        processor_class="DonutProcessor",
        image_processor="DonutImageProcessor",
        parts={"size": {"height": 64, "width": 64}},
        generation=_START,
    ),
    "Pix2StructForConditionalGeneration": Kind(
        config={part: {"d_kv": 16, "d_ff": 128, "num_heads": 4} for part in ("text_config", "vision_config")},
        tokenizer={"max_patches": 32},  # its processor has a number of its own, before its image processor's
        generation=_START,
    ),
    "PPFormulaNetForConditionalGeneration": Kind(
        config={
            "vision_config": {
                "image_size": 64,
                "patch_size": 8,
                "window_size": 4,
                "global_attn_indexes": [1],
                "output_channels": 32,
                "post_conv_in_channels": 32,
                "post_conv_mid_channels": 32,
                "post_conv_out_channels": 64,
                "decoder_hidden_size": 64,
            }
        },
        parts={"size": {"height": 64, "width": 64}},
        generation=_START,
    ),
}
"""`{architecture: what it needs}`."""


_FACTORS = {
    "q_proj.weight": 2.0,
    "k_proj.weight": 2.0,
    "attention.query.weight": 0.5,  # of T5's, which divides no scores
    "encoder_attn.out_proj.weight": 0.3,
    "cross_attention.out_proj.weight": 0.3,
    "embed_positions.weight": 2.0,
}
"""What the weights of such names in a decoder are multiplied by."""


def vary_outputs(model: Any, spread: Mapping[str, float]) -> None:
    """Spread what makes tokens differ: a token sees few others, and the encoder's states do not outweigh it.

    Args:
        model: of transformers.
        spread: as a `Kind` has it.
    """
    import torch

    with torch.no_grad():
        for name, parameter in model.get_decoder().named_parameters():
            for ending, factor in _FACTORS.items():
                if name.endswith(ending):
                    parameter.mul_(factor)
        for name, parameter in model.named_parameters():
            for ending, factor in spread.items():
                if re.search(f"{ending}$", name):
                    parameter.mul_(factor)


def generation_config(stated: Mapping[str, Any], tokenizer: Any) -> Any:
    """Return a generation configuration, with the ids of the tokens that are named."""
    from transformers import GenerationConfig

    vocabulary = tokenizer.get_vocab()

    def ids_of(value: Any) -> Any:
        if isinstance(value, str):
            return vocabulary.get(value, value)
        if isinstance(value, list):
            return [ids_of(one) for one in value]
        return {name: ids_of(one) for name, one in value.items()} if isinstance(value, Mapping) else value

    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = GenerationConfig(**ends)
    for name, value in stated.items():
        setattr(config, name, ids_of(value))
    return config

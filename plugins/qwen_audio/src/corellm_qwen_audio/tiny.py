"""A tiny random Qwen2-Audio checkpoint, made without downloads: for contract tests and experiments.

The chat template is the processor's own, as in the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, randomize_weights, spare, train_tokenizer

_SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "another audio token": {"spare_tokens": 3},
    "a shorter encoder of finer spectrograms": {"seconds": 3, "mel_bins": 24},
    "longer frames": {"hop_length": 200},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""
LONG: Mapping[str, Any] = {"seconds": 30}
"""Arguments of `make_tiny_checkpoint` for audio as long as published checkpoints take."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    seconds: int = 30,
    mel_bins: int = 16,
    hop_length: int = 160,
    spare_tokens: int = 0,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        seconds: longest audio the encoder takes, 30 in the published checkpoints. All audio is padded to this, so a
            lower value makes tests faster.
        mel_bins: of a spectrogram.
        hop_length: samples from one frame to the next.
        spare_tokens: special tokens without a use, which shift the ids of the family's.
    """
    import transformers

    tokenizer = train_tokenizer([*spare(spare_tokens), *_SPECIAL_TOKENS], eos="<|im_end|>", pad="<|endoftext|>")
    extractor = transformers.WhisperFeatureExtractor(feature_size=mel_bins, chunk_length=seconds, hop_length=hop_length)
    audio_config = transformers.Qwen2AudioEncoderConfig(
        num_mel_bins=mel_bins,
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        max_source_positions=extractor.nb_max_frames // 2,
    )
    text_config = transformers.Qwen2Config(
        **decoder_settings(tokenizer, num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=None)
    )
    config = transformers.Qwen2AudioConfig(
        audio_config=audio_config.to_dict(),
        text_config=text_config.to_dict(),
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    model = transformers.Qwen2AudioForConditionalGeneration(config)
    randomize_weights(model, seed)
    model.save_pretrained(path)
    transformers.Qwen2AudioProcessor(extractor, tokenizer).save_pretrained(path)
    return Path(path)

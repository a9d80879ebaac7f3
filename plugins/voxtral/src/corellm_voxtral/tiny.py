"""A tiny random Voxtral checkpoint, made without downloads: for contract tests and experiments.

Its tokenizer is Mistral's file, as in the published checkpoints, which have no chat template.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, layer_sizes, randomize_weights, train_tokenizer, write_json

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "a shorter encoder of finer spectrograms": {"seconds": 2, "mel_bins": 24},
    "longer frames": {"hop_length": 200},
    "fewer embeddings": {"states_per_embedding": 8},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""
_SPECIAL_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
    *(f"<SPECIAL_{rank}>" for rank in range(20, 24)),
    *("[AUDIO]", "[BEGIN_AUDIO]"),  # transformers' processor takes the token of rank 24 for audio
    *(f"<SPECIAL_{rank}>" for rank in range(26, 32)),
    *("[ARGS]", "[CALL_ID]", "[TRANSCRIBE]"),
)
_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    seconds: int = 4,
    mel_bins: int = 16,
    hop_length: int = 160,
    states_per_embedding: int = 4,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        seconds: audio of a chunk, 30 in the published checkpoints. All audio is padded to whole chunks, so a lower
            value makes tests faster.
        mel_bins: of a spectrogram.
        hop_length: samples from one frame to the next.
        states_per_embedding: states of the encoder that the projector makes an embedding of.
    """
    import transformers

    from corellm_voxtral.files import load_tokenizer

    extractor = transformers.WhisperFeatureExtractor(feature_size=mel_bins, chunk_length=seconds, hop_length=hop_length)
    positions = extractor.nb_max_frames // 2
    spectrogram = {"num_mel_bins": mel_bins, "hop_length": hop_length, "window_size": extractor.n_fft}
    frame_rate = extractor.sampling_rate / (2 * hop_length * states_per_embedding)
    audio = {"sampling_rate": extractor.sampling_rate, "frame_rate": frame_rate, "chunk_length_s": seconds}
    write_json(path, {"tekken.json": {**_tekken(), "audio": {**audio, "audio_encoding_config": spectrogram}}})
    tokenizer = load_tokenizer(Path(path))
    audio_config = transformers.VoxtralEncoderConfig(
        **layer_sizes(intermediate_size=64 * states_per_embedding),
        num_mel_bins=mel_bins,
        max_source_positions=positions,
    )
    text_config = transformers.LlamaConfig(
        **decoder_settings(tokenizer, num_key_value_heads=2, max_position_embeddings=2048)
    )
    config = transformers.VoxtralConfig(
        audio_config=audio_config.to_dict(),
        text_config=text_config.to_dict(),
        audio_token_id=tokenizer.convert_tokens_to_ids("[AUDIO]"),
    )
    model = transformers.VoxtralForConditionalGeneration(config)
    randomize_weights(model, seed)
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=11)
    model.save_pretrained(path)
    extractor.save_pretrained(path)
    return Path(path)


def _tekken() -> dict[str, Any]:
    """Mistral's file: special tokens first, then bytes and what is merged of them, by rank."""
    trained = train_tokenizer([], eos="</s>")
    pieces = (trained.decode([rank]) for rank in sorted(trained.get_vocab().values()) if rank > 256)
    ranks = [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in pieces)]
    vocabulary = [
        {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None} for rank, token in enumerate(ranks)
    ]
    special = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(_SPECIAL_TOKENS)]
    config = {
        "pattern": _PATTERN,
        "num_vocab_tokens": len(vocabulary),
        "default_vocab_size": len(vocabulary) + len(special),
        "default_num_special_tokens": len(special),
        "version": "v11",
    }
    return {"config": config, "vocab": vocabulary, "special_tokens": special}

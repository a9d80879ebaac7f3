"""A tiny random IDEFICS checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, randomize_weights, spare, train_sentencepiece

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "a tokenizer that begins texts behind an image with a space": {"legacy": True},
    "other token ids, no token at the end of a turn, larger patches": {
        "spare_tokens": 3, "instructed": False, "patch_size": 12,
    },
    "fewer layers of images than of text": {"num_layers": 4, "cross_layer_interval": 2},
    "no resampler": {"latents": None},
    "normalized queries and keys, a gate for each channel": {"normalized": True, "alpha_type": "vector"},
    "no vocabulary of its own": {"additional_vocab": False},
    "tied embeddings": {"tied": True},
}  # fmt: skip
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""
REFUSED: Mapping[str, Mapping[str, Any]] = {"a tower that is wider than the decoder": {"tower_size": 96}}
"""The same for checkpoints that are refused at load."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    num_layers: int = 2,
    cross_layer_interval: int = 1,
    tower_size: int = 48,
    patch_size: int = 8,
    latents: int | None = 5,
    normalized: bool = False,
    alpha_type: str = "float",
    additional_vocab: bool = True,
    tied: bool = False,
    spare_tokens: int = 0,
    instructed: bool = True,
    legacy: bool = False,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        num_layers: of text.
        cross_layer_interval: layers of text behind each layer of images.
        tower_size: width of an image's states.
        patch_size: of the vision tower, which has learned positions for 4 x 4.
        latents: states of an image; None for a state of each patch.
        normalized: whether queries and keys are, in layers of images and in the resampler.
        alpha_type: `"float"` for one gate of a layer's, `"vector"` for one of each channel.
        additional_vocab: whether the tokens around images have a table of their own, as published ones do.
        tied: whether the output layer is the embedding table.
        spare_tokens: special tokens without a use, which shift the others' ids.
        instructed: whether there is a token at the end of a turn, as after training on conversations.
        legacy: whether the tokenizer begins a text behind a special token with a space, as one at the start.
    """
    import transformers
    from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil

    added = ["<fake_token_around_image>", "<image>", *["<end_of_utterance>"] * instructed]
    tokenizer = _tokenizer(spare_tokens, added, legacy=legacy)
    additional = len(added) if additional_vocab else 0
    image_size = 4 * patch_size
    config = transformers.IdeficsConfig(
        **decoder_settings(tokenizer, num_layers=num_layers, vocab_size=len(tokenizer) - additional),
        additional_vocab_size=additional,
        cross_layer_interval=cross_layer_interval,
        qk_layer_norms=normalized,
        alpha_type=alpha_type,
        use_resampler=latents is not None,
        tie_word_embeddings=tied,
        vision_config={
            "embed_dim": tower_size,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": image_size,
            "patch_size": patch_size,
        },
        perceiver_config={
            "use_resampler": latents is not None,
            "resampler_n_latents": latents or 1,
            "resampler_depth": 2,
            "resampler_n_heads": 4,
            "resampler_head_dim": 16,
            "qk_layer_norms_perceiver": normalized,
        },
    )
    model = transformers.IdeficsForVisionText2Text(config)
    randomize_weights(model, seed)
    _open_gates(model, seed)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(["</s>", *added[2:]])
    model.save_pretrained(path)
    images = IdeficsImageProcessorPil(image_size=image_size)
    transformers.IdeficsProcessor(images, tokenizer, image_size=image_size).save_pretrained(path)
    return Path(path)


def _open_gates(model: Any, seed: int) -> None:
    """Let images count, each in its own way: gates are closed before training.

    Layers of images look at few states, else each token would get the same of an image.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.model.gated_cross_attn_layers:
            for gate, mean in ((layer.alpha_cross_attn, 1.0), (layer.alpha_dense, 0.5)):
                gate.copy_(mean + 0.2 * torch.randn(gate.shape, generator=generator))
            layer.cross_attn.q_proj.weight.mul_(3)
        if model.config.use_resampler:
            model.model.perceiver_resampler.latents.mul_(8)  # as far apart as what they look at


def _tokenizer(spare_tokens: int, added: list[str], *, legacy: bool) -> Any:
    """Return a tokenizer as the published one, which begins texts with BOS; added tokens come last."""
    import transformers

    special = ["<unk>", "<s>", "</s>", *spare(spare_tokens)]
    tokenizer = transformers.LlamaTokenizer(
        **train_sentencepiece(special), legacy=legacy, add_bos_token=True, pad_token="<unk>"
    )
    tokenizer.add_tokens([*special, *added], special_tokens=True)
    return tokenizer

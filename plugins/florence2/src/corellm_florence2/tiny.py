"""A tiny random Florence-2 checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import randomize_weights, spare, special_token_ids, train_tokenizer

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "another image token": {"spare_tokens": 3},
    "more tokens an image": {"image_size": 96},
    "nothing forced": {"forces_bos": False},
    "the embedding table for an output layer": {"tied": True},
    "fewer layers in the encoder": {"encoder_layers": 1, "decoder_layers": 3},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "another image token in config.json": {"stated_image_token": 1},
}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    hidden_size: int = 64,
    encoder_layers: int = 2,
    decoder_layers: int = 2,
    image_size: int = 64,
    max_positions: int = 512,
    spare_tokens: int = 0,
    forces_bos: bool = True,
    tied: bool = False,
    stated_image_token: int | None = None,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        hidden_size, encoder_layers, decoder_layers: of the text model.
        image_size: side of the tower's square, in pixels; a multiple of 16, its patch.
        max_positions: of the text encoder, and of the decoder.
        spare_tokens: special tokens without a use, which shift the image token's id.
        forces_bos: whether the generation configuration forces `<s>`, as published ones do.
        tied: whether the output layer is the embedding table, as in published ones; outputs vary less then.
        stated_image_token: in config.json; None for the tokenizer's.
    """
    import transformers

    tokenizer = _tokenizer(spare_tokens)
    tokens = special_token_ids(tokenizer)
    text_config = transformers.BartConfig(
        vocab_size=len(tokenizer),
        d_model=hidden_size,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * hidden_size,
        decoder_ffn_dim=2 * hidden_size,
        max_position_embeddings=max_positions,
        decoder_start_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=None,
        **tokens,
    )
    config = transformers.Florence2Config(
        vision_config={
            "embed_dim": [16, 32, 64],
            "num_heads": [1, 2, 4],
            "num_groups": [1, 2, 4],
            "depths": [1, 1, 1],
            "patch_size": [7, 3, 3],
            "patch_stride": [4, 2, 2],
            "patch_padding": [3, 1, 1],
            "patch_prenorm": [False, True, True],
            "window_size": 4,
            "projection_dim": hidden_size,
        },
        text_config=text_config.to_dict(),
        image_token_id=tokenizer.image_token_id if stated_image_token is None else stated_image_token,
        tie_word_embeddings=tied,
    )
    model = transformers.Florence2ForConditionalGeneration(config)
    randomize_weights(model, seed)
    _vary_outputs(model)
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=tokenizer.eos_token_id,
        forced_bos_token_id=tokenizer.bos_token_id if forces_bos else None,
        **tokens,
    )
    images = transformers.CLIPImageProcessorPil(
        size={"height": image_size, "width": image_size},
        do_center_crop=False,
        crop_size={"height": image_size, "width": image_size},
        image_seq_length=1 + (image_size // 16) ** 2,
    )
    model.save_pretrained(path)
    transformers.Florence2Processor(images, tokenizer).save_pretrained(path)
    return Path(path)


def _vary_outputs(model: Any) -> None:
    """Spread what makes tokens differ: BART's norms after each layer even it out.

    Tokens see few others of theirs, positions differ more, and what is read of the encoder does not outweigh both.
    """
    import torch

    factors = {"q_proj.weight": 2, "k_proj.weight": 2, "encoder_attn.out_proj.weight": 0.3}
    with torch.no_grad():
        model.model.language_model.decoder.embed_positions.weight.mul_(2)
        for name, parameter in model.model.language_model.named_parameters():
            for ending, factor in factors.items():
                if name.endswith(ending):
                    parameter.mul_(factor)


def _tokenizer(spare_tokens: int) -> Any:
    """BART's form: texts stand between `<s>` and `</s>`; with tokens for places, a few of the thousand."""
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    own = [*spare(spare_tokens), "<image>", *(f"<loc_{i}>" for i in range(8)), "<od>", "</od>"]
    backend = train_tokenizer(own, bos="<s>", eos="</s>", pad="<pad>", unk="<unk>").backend_tokenizer
    backend.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, backend.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
        model_input_names=["input_ids", "attention_mask"],
    )

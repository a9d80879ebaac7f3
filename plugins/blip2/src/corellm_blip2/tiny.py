"""A tiny random BLIP-2 checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from corellm.tiny_checkpoints import layer_sizes, randomize_weights, train_tokenizer

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "another number of queries": {"num_query_tokens": 5},
    "another image token": {"vocab_size": 370},
    "a larger tower": {"image_size": 84},
    "a processor that does not state the number of queries": {"stated_query_tokens": None},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "T5, an encoder-decoder": {"text": "t5"},
    "a configuration from before there was an image token": {"names_image_token": False},
    "a processor with another number of queries than the model's": {"stated_query_tokens": 4},
}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    text: Literal["opt", "t5"] = "opt",
    embed_image_token: bool = True,
    names_image_token: bool = True,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_query_tokens: int = 8,
    stated_query_tokens: int | Literal["the model's"] | None = "the model's",
    image_size: int = 56,
    vocab_size: int = 400,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        text: the text model.
        embed_image_token: whether the embedding table has a row for the image token.
        names_image_token: whether config.json says which token that is.
        hidden_size, num_layers: of the text model.
        num_query_tokens: tokens of an image.
        stated_query_tokens: the same in the processor's configuration; processors of older checkpoints state none.
        image_size: side of the tower's square, in pixels; a multiple of 14, the patch.
        vocab_size: of the tokenizer without the image token, which comes last.
    """
    import transformers

    tokenizer = train_tokenizer([], vocab_size=vocab_size, bos="</s>", eos="</s>", pad="<pad>", add_bos=True)
    text_vocabulary = len(tokenizer)
    processor = transformers.Blip2Processor(  # adds the image token, last
        transformers.BlipImageProcessorPil(size={"height": image_size, "width": image_size}),
        tokenizer,
        num_query_tokens=num_query_tokens if stated_query_tokens == "the model's" else stated_query_tokens,
    )
    config = transformers.Blip2Config(
        vision_config=layer_sizes(image_size=image_size, patch_size=14),
        qformer_config=layer_sizes(48, vocab_size=50),
        text_config=_text_config(text, tokenizer, text_vocabulary + int(embed_image_token), hidden_size, num_layers),
        num_query_tokens=num_query_tokens,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>") if names_image_token else None,
    )
    model = transformers.Blip2ForConditionalGeneration(config)
    randomize_weights(model, seed)
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return Path(path)


def _text_config(text: str, tokenizer: Any, vocab_size: int, hidden_size: int, num_layers: int) -> dict[str, Any]:
    """The text model's configuration, with four heads."""
    common = {"model_type": text, "vocab_size": vocab_size}
    common |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if text == "t5":
        sizes = {"d_model": hidden_size, "d_kv": hidden_size // 4, "d_ff": 2 * hidden_size, "num_layers": num_layers}
        return {**common, **sizes, "num_heads": 4, "decoder_start_token_id": tokenizer.pad_token_id}
    return {
        **common,
        "hidden_size": hidden_size,
        "word_embed_proj_dim": hidden_size,
        "ffn_dim": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.bos_token_id,
    }

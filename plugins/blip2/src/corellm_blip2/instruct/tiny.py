"""A tiny random InstructBLIP checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from corellm.tiny_checkpoints import decoder_settings, layer_sizes, randomize_weights, train_tokenizer

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "OPT": {"text": "opt"},
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
    text: Literal["llama", "opt", "t5"] = "llama",
    names_image_token: bool = True,
    num_query_tokens: int = 8,
    stated_query_tokens: int | Literal["the model's"] | None = "the model's",
    image_size: int = 56,
    vocab_size: int = 400,
    instruction_positions: int = 512,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        text: the text model.
        names_image_token: whether config.json says which token is the image's.
        num_query_tokens: tokens of an image.
        stated_query_tokens: the same in the processor's configuration; processors of older checkpoints state none.
        image_size: side of the tower's square, in pixels; a multiple of 14, the patch.
        vocab_size: of the tokenizer without the image token, which comes last.
        instruction_positions: most tokens of an instruction.
    """
    import transformers

    tokenizer = train_tokenizer([], vocab_size=vocab_size, bos="<s>", eos="</s>", pad="<pad>", add_bos=True)
    instructions = instruction_tokenizer()
    processor = transformers.InstructBlipProcessor(  # adds the image token, last
        transformers.BlipImageProcessorPil(size={"height": image_size, "width": image_size}),
        tokenizer,
        instructions,
        num_query_tokens=num_query_tokens if stated_query_tokens == "the model's" else stated_query_tokens,
    )
    qformer = {"vocab_size": len(instructions), "max_position_embeddings": instruction_positions}
    config = transformers.InstructBlipConfig(
        vision_config=layer_sizes(image_size=image_size, patch_size=14),
        qformer_config=layer_sizes(48, **qformer),
        text_config=decoder_config(text, tokenizer),
        num_query_tokens=num_query_tokens,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>") if names_image_token else None,
    )
    model = transformers.InstructBlipForConditionalGeneration(config)
    randomize_weights(model, seed)
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return Path(path)


def instruction_tokenizer() -> Any:
    """The Q-Former's: BERT's, of lower case, with letters and signs for its words."""
    import transformers

    signs = sorted({*string.ascii_lowercase, *string.digits, *string.punctuation})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *signs, *(f"##{sign}" for sign in signs)]
    return transformers.BertTokenizer({token: i for i, token in enumerate(tokens)})


def decoder_config(text: str, tokenizer: Any) -> dict[str, Any]:
    """The text model's configuration, with four heads."""
    sizes = {"model_type": text, **decoder_settings(tokenizer)}
    if text == "t5":
        sizes |= {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
        return {**sizes, "decoder_start_token_id": tokenizer.pad_token_id}
    return sizes | {"ffn_dim": 128, "word_embed_proj_dim": 64} if text == "opt" else sizes

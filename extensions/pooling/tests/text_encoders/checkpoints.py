"""Tiny random checkpoints of encoder-only models, with a tokenizer that joins pairs as BERT's does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import processors

from corellm.tiny_checkpoints import randomize_weights, train_tokenizer

TEXTS = ("A red circle is above a blue square", "One two three four five", "What?", "A red circle is above", "Why")
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 66,
}
CLOSE = {"rtol": 0, "atol": 1e-5}


def make_tiny_encoder(path: Path, architecture: str, *, seed: int = 0, **config: Any) -> Path:
    """Write a checkpoint of a class of transformers; `config` is of its configuration, beside the usual sizes."""
    tokenizer = make_tokenizer(types="type_vocab_size" in config)
    cls = getattr(transformers, architecture)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model = cls(cls.config_class(**{**SIZES, **ids, **config}))
    randomize_weights(model, seed)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def make_tokenizer(*, types: bool) -> Any:
    """Return a tokenizer that puts `[CLS]` before and `[SEP]` after every text; `types`: and gives types of tokens."""
    backend = train_tokenizer(["[CLS]"], eos="[SEP]", pad="[PAD]", unk="[UNK]").backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", *(["token_type_ids"] if types else []), "attention_mask"],
    )


def alone(model: Any, token_ids: list[int]) -> torch.Tensor:
    """The hidden states of one prompt, `[tokens, hidden_size]`, by transformers."""
    with torch.inference_mode():
        hidden: torch.Tensor = model(input_ids=torch.tensor([token_ids]))[0][0]
    return hidden

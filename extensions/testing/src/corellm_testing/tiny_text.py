"""Tiny random text-only checkpoints of any decoder of transformers, made without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import randomize_weights, special_token_ids, train_tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def make_tiny_checkpoint(
    path: str | Path, seed: int = 0, *, architecture: str = "LlamaForCausalLM", **config: Any
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        architecture: a class of transformers.
        config: arguments of its configuration, beside the usual sizes and special tokens.
    """
    import transformers

    tokenizer = train_tokenizer([], bos="<s>", eos="</s>", pad="<pad>", unk="<unk>", add_bos=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 1024,
        **special_token_ids(tokenizer),
    }
    cls = getattr(transformers, architecture)
    model = cls(cls.config_class(**{**sizes, **config}))
    randomize_weights(model, seed)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return Path(path)

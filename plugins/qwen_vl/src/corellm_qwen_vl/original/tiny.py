"""A tiny random Qwen-VL checkpoint, made without downloads, with the files and names of the published ones.

Its `auto_map` names modules of the checkpoint's own, as the published ones do; they must never be imported.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import train_tokenizer, with_biases, write_json, write_weights
from corellm_qwen_vl.original.tokenizer import FILE_NAME, IMAGE_END, IMAGE_START, NUM_ADDED_TOKENS, load_tokenizer

_SEQ_LENGTH = 2048
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "other image tokens": {"vocab_size": 370},
    "another number of queries": {"n_queries": 9},
    "smaller images": {"image_size": 84},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "a configuration of another tokenizer": {"image_start": IMAGE_END},
}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    n_queries: int | None = None,
    image_start: str = IMAGE_START,
    chat_format: str = "chatml",
    max_window_size: int = 6144,
    hidden_size: int = 256,
    num_layers: int = 2,
    num_shards: int = 1,
    image_size: int = 112,
    vocab_size: int = 400,
) -> Path:
    """Write a checkpoint under the published names into `path`, and return that; `seed` is the weights'.

    Args:
        n_queries: tokens per image, a square number; None for the published 256, of which `config.json` says nothing.
        image_start: the token whose id `config.json` has for the one before an image.
        chat_format: `"chatml"` as in Qwen-VL-Chat, `"raw"` as in Qwen-VL.
        max_window_size: tokens that a conversation's prompt stays below.
        hidden_size: of the text decoder, a multiple of 128.
        num_layers: of the text decoder.
        num_shards: files to spread the weights over; more than one come with an index.
        image_size: side that images are resized to, in pixels; a multiple of 14, the patch.
        vocab_size: of the tokenizer that is trained; the family's tokens come after it.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    num_ranks = _write_ranks(path / FILE_NAME, vocab_size)
    num_rows = -(-(num_ranks + NUM_ADDED_TOKENS) // 64) * 64  # wider than the tokenizer, as published
    visual = {
        "heads": 4,
        "image_size": image_size,
        "image_start_id": load_tokenizer(path).convert_tokens_to_ids(image_start),
        "layers": 2,
        "mlp_ratio": 1.53,
        "output_dim": hidden_size,
        "patch_size": 14,
        "width": 64,
    }
    if n_queries is not None:
        visual["n_queries"] = n_queries
    config = _text_config(num_rows, hidden_size, num_layers) | {"visual": visual}
    generation = {
        "chat_format": chat_format,
        "eos_token_id": num_ranks,
        "pad_token_id": num_ranks,
        "max_window_size": max_window_size,
        "max_new_tokens": 512,
        "do_sample": True,
        "top_k": 0,
        "top_p": 0.5,
    }
    tokenizer_config = {
        "model_max_length": _SEQ_LENGTH,
        "tokenizer_class": "QWenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]},
    }
    files = {"config": config, "generation_config": generation, "tokenizer_config": tokenizer_config}
    write_json(path, {f"{name}.json": content for name, content in files.items()})
    tables = dict.fromkeys(("*wte*", "*.positional_embedding", "*.pos_embed", "*.query"), 0.5)
    write_weights(path, _shapes(config), seed, tables, num_shards=num_shards)
    return path


def _text_config(vocab_size: int, hidden_size: int, num_layers: int) -> dict[str, Any]:
    return {
        "architectures": ["QWenLMHeadModel"],
        "auto_map": {
            "AutoConfig": "configuration_qwen.QWenConfig",
            "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel",
        },
        "model_type": "qwen",
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,  # of gate and up projection together
        "kv_channels": hidden_size // 4,
        "layer_norm_epsilon": 1e-06,
        "max_position_embeddings": 4 * _SEQ_LENGTH,
        "no_bias": True,
        "num_attention_heads": 4,
        "num_hidden_layers": num_layers,
        "rotary_emb_base": 10000,
        "rotary_pct": 1.0,
        "seq_length": _SEQ_LENGTH,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
        "vocab_size": vocab_size,
    }


def _write_ranks(file: Path, vocab_size: int) -> int:
    """Train a byte-level BPE and write it as `qwen.tiktoken`; returns the number of ranks."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokenizer = train_tokenizer([], vocab_size=vocab_size)
    ordinary = sorted((i, token) for token, i in tokenizer.get_vocab().items() if i not in tokenizer.all_special_ids)
    of_byte = {character: byte for byte, character in bytes_to_unicode().items()}
    with file.open("wb") as lines:
        for rank, (_, token) in enumerate(ordinary):
            lines.write(base64.b64encode(bytes(of_byte[character] for character in token)) + b" %d\n" % rank)
    return len(ordinary)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every weight of such a checkpoint, by its published name."""
    hidden, visual, tower = config["hidden_size"], config["visual"], "transformer.visual"
    inner, width, patch = config["intermediate_size"] // 2, visual["width"], visual["patch_size"]
    queries, mlp = visual.get("n_queries", 256), int(visual["width"] * visual["mlp_ratio"])
    pool = f"{tower}.attn_pool"
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (config["vocab_size"], hidden),
        "transformer.wte.weight": (config["vocab_size"], hidden),
        "transformer.ln_f.weight": (hidden,),
        f"{tower}.positional_embedding": (256, width),
        f"{tower}.proj": (hidden, hidden),
        f"{tower}.conv1.weight": (width, 3, patch, patch),
        f"{pool}.query": (queries, hidden),
        f"{pool}.pos_embed": (queries, hidden),
        f"{pool}.kv_proj.weight": (hidden, width),
        f"{pool}.attn.in_proj_weight": (3 * hidden, hidden),
        f"{pool}.attn.in_proj_bias": (3 * hidden,),
    }
    modules: dict[str, tuple[int, ...]] = {
        f"{tower}.ln_pre": (width,),
        f"{tower}.ln_post": (hidden,),
        f"{pool}.ln_q": (hidden,),
        f"{pool}.ln_kv": (hidden,),
        f"{pool}.attn.out_proj": (hidden, hidden),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"transformer.h.{i}"
        shapes |= {f"{layer}.{name}.weight": (hidden,) for name in ("ln_1", "ln_2")}
        shapes |= {f"{layer}.mlp.{name}.weight": (inner, hidden) for name in ("w1", "w2")}
        shapes |= {f"{layer}.mlp.c_proj.weight": (hidden, inner), f"{layer}.attn.c_proj.weight": (hidden, hidden)}
        modules[f"{layer}.attn.c_attn"] = (3 * hidden, hidden)
    block = {"ln_1": (width,), "ln_2": (width,), "mlp.c_fc": (mlp, width), "mlp.c_proj": (width, mlp)}
    block |= {"attn.in_proj": (3 * width, width), "attn.out_proj": (width, width)}
    for i in range(visual["layers"]):
        modules |= {f"{tower}.transformer.resblocks.{i}.{name}": shape for name, shape in block.items()}
    return shapes | with_biases(modules)

"""Checkpoints of random weights in the layout of the hub, written once: one for each size and type.

A tiny checkpoint's files with other sizes in them. Weights are spread as the tiny ones', so that greedy output varies;
words are added to the tokenizer, so that almost every token has a text.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers.sizes import PATCH, SIZES, Size


def checkpoint(folder: Path, name: str, dtype: str) -> Path:
    """The directory of a model's checkpoint, which is written if it is not there."""
    path = folder / f"{name}-{dtype}" / "model"
    if not path.exists():
        unfinished = path.with_name("unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        import transformers

        transformers.logging.disable_progress_bar()
        {"llava": _write_llava, "qwen2_vl": _write_qwen2_vl}[SIZES[name].family](unfinished, SIZES[name], dtype)
        unfinished.rename(path)
    return path


def prompt_length(path: Path, size: Size) -> Callable[[str], int]:
    """A function that gives the number of a prompt's tokens, those of its image included."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    image = tokenizer.token_to_id("<image>" if size.family == "llava" else "<|image_pad|>")
    assert image is not None, f"the tokenizer of {path} has no image token"

    def length(text: str) -> int:
        ids = tokenizer.encode(text).ids
        return len(ids) + ids.count(image) * (size.image_tokens - 1)

    return length


def _write_llava(path: Path, size: Size, dtype: str) -> None:
    import transformers

    from corellm_llava.tiny import make_tiny_checkpoint

    make_tiny_checkpoint(path)
    _add_words(path, size.decoder.vocab)
    tower, side = size.tower, PATCH * round((size.tower.positions - 1) ** 0.5)
    config = transformers.AutoConfig.from_pretrained(path)
    _set_decoder(config.text_config, size)
    vision = {
        "hidden_size": tower.hidden, "intermediate_size": tower.intermediate, "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.heads, "image_size": side, "patch_size": PATCH,
    }  # fmt: skip
    for name, value in vision.items():
        setattr(config.vision_config, name, value)
    config.image_seq_length = size.image_tokens
    processor = transformers.AutoProcessor.from_pretrained(path)
    processor.image_processor.size = {"shortest_edge": side}
    processor.image_processor.crop_size = {"height": side, "width": side}
    processor.save_pretrained(path)
    _write_weights(path, transformers.LlavaForConditionalGeneration, config, dtype)
    _name_tower_as_the_hub_does(path)


def _write_qwen2_vl(path: Path, size: Size, dtype: str) -> None:
    import transformers

    from corellm_qwen_vl.tiny import make_tiny_checkpoint

    make_tiny_checkpoint(path)
    _add_words(path, size.decoder.vocab)
    config = transformers.AutoConfig.from_pretrained(path)
    _set_decoder(config.text_config, size)
    half = size.decoder.hidden // size.decoder.heads // 2
    config.text_config.rope_parameters["mrope_section"] = [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8]
    tower = size.tower
    vision = {
        "hidden_size": size.decoder.hidden, "embed_dim": tower.hidden, "depth": tower.layers, "num_heads": tower.heads,
        "mlp_ratio": tower.intermediate // tower.hidden,
    }  # fmt: skip
    for name, value in vision.items():
        setattr(config.vision_config, name, value)
    file = path / "preprocessor_config.json"
    images = json.loads(file.read_text(encoding="utf-8"))
    # 640 x 480 becomes 16 x 12 tokens of 28 x 28 pixels; a little more is allowed, because sides are rounded down
    images["size"] = {"shortest_edge": 4 * 28 * 28, "longest_edge": (size.image_tokens + 8) * 28 * 28}
    file.write_text(json.dumps(images, indent=2) + "\n", encoding="utf-8")
    _write_weights(path, transformers.Qwen2VLForConditionalGeneration, config, dtype)


def _add_words(path: Path, vocab: int) -> None:
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    known = max(*words.values(), *(token["id"] for token in tokenizer["added_tokens"])) + 1
    words |= {f"\u0120word{i}": i for i in range(known, vocab)}
    file.write_text(json.dumps(tokenizer), encoding="utf-8")


def _set_decoder(text: Any, size: Size) -> None:
    decoder = size.decoder
    values = {
        "hidden_size": decoder.hidden, "intermediate_size": decoder.intermediate, "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads, "num_key_value_heads": decoder.kv_heads, "vocab_size": decoder.vocab,
        "head_dim": decoder.hidden // decoder.heads, "max_position_embeddings": 4096, "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * decoder.layers,
    }  # fmt: skip
    for name, value in values.items():
        if hasattr(text, name):
            setattr(text, name, value)


def _write_weights(path: Path, model_class: Any, config: Any, dtype: str) -> None:
    import torch

    from corellm.tiny_checkpoints import randomize_weights

    model = model_class._from_config(config, dtype=getattr(torch, dtype))
    randomize_weights(model, 0)
    for file in path.glob("*.safetensors"):
        file.unlink()
    model.save_pretrained(path, max_shard_size="8GB")


def _name_tower_as_the_hub_does(path: Path) -> None:
    """Published checkpoints have one level more in the tower's names than transformers writes; vLLM reads no others."""
    from safetensors.torch import load_file, save_file

    for file in path.glob("*.safetensors"):
        old, new = "vision_tower.", "vision_tower.vision_model."
        renamed = {name.replace(old, new): value for name, value in load_file(file).items()}
        save_file(renamed, file, metadata={"format": "pt"})

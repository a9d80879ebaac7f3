"""Random LLaVA checkpoints of published sizes: a Llama decoder behind CLIP's ViT-L/336, 576 tokens an image.

A tiny checkpoint's files with other sizes in them. Weights are made on the device and spread as tiny checkpoints' are,
so that greedy output varies; words are added to the tokenizer, so that almost every token has a text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from bench.gpu.results import Run

_SHARD = "1GB"
_VIT_L = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}


@dataclass(frozen=True)
class Size:
    """Sizes of the decoder; the tower is ViT-L, or the tiny checkpoint's."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int = 32064

    @property
    def decoder_parameters(self) -> int:
        """Weights that a decode step reads: layers, norms, the output matrix; of the embeddings only rows."""
        kv = self.hidden // self.heads * self.kv_heads
        layer = 2 * self.hidden**2 + 2 * self.hidden * kv + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + (1 + self.vocab) * self.hidden

    @property
    def kv_elements(self) -> int:
        """Elements of a token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.hidden // self.heads


SIZES = {
    "7b": Size(4096, 11008, 32, 32, 32),
    "1b": Size(2048, 8192, 16, 32, 8),
    "tiny": Size(64, 128, 2, 4, 2, vocab=512),
}


def measure(run: Run) -> None:
    """Write the checkpoints."""
    for model in ("tiny",) if run.quick else ("1b", "7b"):
        with run.guard(f"checkpoint {model}"):
            _write(run, model, SIZES[model])
            size = sum(file.stat().st_size for file in run.checkpoint(model).iterdir())
            run.figure(f"checkpoint {model}", gb=size / 1e9)


def _write(run: Run, model: str, size: Size) -> None:
    import torch
    import transformers

    from corellm.tiny_checkpoints import randomize_weights
    from corellm_llava.tiny import make_tiny_checkpoint

    path = make_tiny_checkpoint(run.checkpoint(model))
    tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    known = len(words) + len(tokenizer["added_tokens"])
    words |= {f"\u0120word{i}": i for i in range(known, size.vocab - 64)}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = transformers.AutoConfig.from_pretrained(path)
    text = {
        "hidden_size": size.hidden, "intermediate_size": size.intermediate, "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads, "vocab_size": size.vocab,
        "head_dim": size.hidden // size.heads, "max_position_embeddings": 4096,
    }  # fmt: skip
    for name, value in text.items():
        setattr(config.text_config, name, value)
    if model != "tiny":
        for name, value in (*_VIT_L.items(), ("image_size", 336), ("patch_size", 14)):
            setattr(config.vision_config, name, value)
        config.image_seq_length = 576
        processor = transformers.AutoProcessor.from_pretrained(path)
        processor.image_processor.size = {"shortest_edge": 336}
        processor.image_processor.crop_size = {"height": 336, "width": 336}
        processor.patch_size = 14
        processor.save_pretrained(path)
    with run.device:
        weights = transformers.LlavaForConditionalGeneration._from_config(config, dtype=run.dtype)
    randomize_weights(weights, 0)
    (path / "model.safetensors").unlink()  # else it goes before the parts of a large one
    weights.save_pretrained(path, max_shard_size=_SHARD)
    del weights
    if run.device_type == "cuda":
        torch.cuda.empty_cache()

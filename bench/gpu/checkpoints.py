"""Random LLaVA checkpoints of the published sizes: a Llama decoder and CLIP's ViT-L/336, 576 tokens a picture.

Weights are made on the device, one shard after another, and spread as tiny checkpoints' are, so that greedy output
varies. The tokenizer is a tiny checkpoint's, with words added until it fills the vocabulary: every token has a text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.gpu.settings import Settings

PART = "checkpoints"
_SHARD_BYTES = 2**29


@dataclass(frozen=True)
class Size:
    """Of a LLaVA."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    image: int
    """Pixels a side; patches have 14."""
    vision_hidden: int
    vision_intermediate: int
    vision_layers: int
    vision_heads: int

    @property
    def image_tokens(self) -> int:
        """Of a picture."""
        return (self.image // 14) ** 2

    @property
    def layer_parameters(self) -> int:
        """Of the decoder's layers, which every token passes through."""
        kv = self.hidden // self.heads * self.kv_heads
        return self.layers * (2 * self.hidden**2 + 2 * self.hidden * kv + 3 * self.hidden * self.intermediate)

    @property
    def decoder_parameters(self) -> int:
        """What a decode step reads: layers and their norms, the last norm, the output's matrix; of embeddings a row."""
        return self.layer_parameters + (2 * self.layers + 1) * self.hidden + self.vocab * self.hidden

    @property
    def kv_elements(self) -> int:
        """Keys and values of a token."""
        return 2 * self.layers * self.kv_heads * self.hidden // self.heads

    @property
    def vision_parameters(self) -> int:
        """Of the tower's layers that are run, all but the last, without biases and norms."""
        per_layer = 4 * self.vision_hidden**2 + 2 * self.vision_hidden * self.vision_intermediate
        return (self.vision_layers - 1) * per_layer


_VIT_L = {"image": 336, "vision_hidden": 1024, "vision_intermediate": 4096, "vision_layers": 24, "vision_heads": 16}
SIZES = {
    "1b": Size(hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, vocab=32064, **_VIT_L),
    "7b": Size(hidden=4096, intermediate=11008, layers=32, heads=32, kv_heads=32, vocab=32064, **_VIT_L),
    "tiny": Size(64, 128, 2, 4, 2, 512, 56, 64, 128, 3, 4),
}


def make(settings: Settings, *models: str) -> None:
    """Write the checkpoints of some models."""
    for model in models:
        with settings.records.guard(PART, model):
            start = time.perf_counter()
            path = settings.checkpoint(model)
            write(path, SIZES[model], settings.dtype, torch.device(settings.device))
            size = sum(file.stat().st_size for file in path.iterdir())
            settings.records.figure(PART, model, seconds=time.perf_counter() - start, gb=size / 1e9, where=str(path))


def write(path: Path, size: Size, dtype: torch.dtype, device: torch.device) -> None:
    """Write one: configuration, tokenizer, processor, weights."""
    import transformers

    path.mkdir(parents=True)
    tokenizer = _tokenizer(size.vocab - 64)
    config = _config(size, tokenizer, dtype)
    config.save_pretrained(path)
    transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(path)
    _processor(size, tokenizer).save_pretrained(path)
    with torch.device("meta"):
        model = transformers.LlavaForConditionalGeneration(config)
    _write_weights(path, model.state_dict(), dtype, device)


def _tokenizer(vocab: int) -> Any:
    """A tiny checkpoint's, with words that no text is made of, up to the size."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from corellm.testing.checkpoints import train_tokenizer

    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tiny = train_tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", unk="<unk>", add_bos=True)
    described = json.loads(tiny.backend_tokenizer.to_str())
    words = described["model"]["vocab"]
    words |= {f"\u0120word{i}": i for i in range(len(words), vocab)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)), additional_special_tokens=["<image>"], **named
    )
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def _config(size: Size, tokenizer: Any, dtype: torch.dtype) -> Any:
    import transformers

    return transformers.LlavaConfig(
        architectures=["LlavaForConditionalGeneration"],
        dtype=dtype,
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=size.vision_hidden,
            intermediate_size=size.vision_intermediate,
            num_hidden_layers=size.vision_layers,
            num_attention_heads=size.vision_heads,
            image_size=size.image,
            patch_size=14,
            projection_dim=min(768, size.vision_hidden),
        ),
        text_config=transformers.LlamaConfig(
            hidden_size=size.hidden,
            intermediate_size=size.intermediate,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            vocab_size=size.vocab,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=size.image_tokens,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )


def _processor(size: Size, tokenizer: Any) -> Any:
    import transformers

    from corellm_llava.tiny import CHAT_TEMPLATE

    pictures = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": size.image}, crop_size={"height": size.image, "width": size.image}
    )
    return transformers.LlavaProcessor(
        pictures,
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


# --- weights ----------------------------------------------------------------------------------------------------------


def _write_weights(path: Path, shapes: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> None:
    """Shards of half a gigabyte, four on their way at a time, and their index."""
    shards: list[dict[str, torch.Size]] = [{}]
    filled = 0
    for name, tensor in shapes.items():
        if filled + tensor.numel() * dtype.itemsize > _SHARD_BYTES and shards[-1]:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor.shape
        filled += tensor.numel() * dtype.itemsize
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]

    def write_shard(index: int) -> None:
        _write_shard(path / names[index], shards[index], dtype, device, seed=index)

    with ThreadPoolExecutor(4) as pool:
        for written in [pool.submit(write_shard, index) for index in range(len(shards))]:
            written.result()
    places = {name: names[index] for index, shard in enumerate(shards) for name in shard}
    total = sum(shape.numel() * dtype.itemsize for shard in shards for shape in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _write_shard(
    file: Path, shapes: Mapping[str, torch.Size], dtype: torch.dtype, device: torch.device, seed: int
) -> None:
    from safetensors.torch import save_file

    generator = torch.Generator(device).manual_seed(seed)
    weights = {name: _weight(name, shape, dtype, generator).cpu() for name, shape in shapes.items()}
    save_file(weights, file, metadata={"format": "pt"})


def _weight(name: str, shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Spread as `corellm.testing.checkpoints.randomize_weights` does: norms stay at one."""
    if len(shape) == 1 and name.endswith("weight"):
        return torch.ones(shape, dtype=dtype)
    spread = 0.5 if "embed_tokens" in name else 1.4 / shape[-1] ** 0.5 if len(shape) == 2 else 0.1
    numbers = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)
    return numbers.mul_(spread).to(dtype)

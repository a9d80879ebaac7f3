"""Checkpoints of models that pool, made of a tiny LLaVA: other heads, other names, files of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WIDTH = 64


def rewritten(
    source: Path,
    path: Path,
    *,
    architecture: str | None = None,
    heads: dict[str, torch.Tensor] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a copy of a checkpoint with other heads in place of its output layer, and changes of its configuration."""
    shutil.copytree(source, path, dirs_exist_ok=True)
    file = path / "config.json"
    stated = json.loads(file.read_text()) | (config or {})
    if architecture is not None:
        stated["architectures"] = [architecture]
    file.write_text(json.dumps(stated))
    if heads is not None:
        tensors = load_file(path / "model.safetensors")
        kept = {name: tensor for name, tensor in tensors.items() if "lm_head" not in name}
        save_file(kept | heads, path / "model.safetensors", {"format": "pt"})
    return path


def random_tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, small enough for logits without saturation."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def hidden_states(source: Path, token_ids: list[int]) -> torch.Tensor:
    """Hidden states of a tiny LLaVA's text, `[tokens, hidden_size]`, by transformers."""
    import transformers

    model = transformers.LlavaForConditionalGeneration.from_pretrained(source, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden: torch.Tensor = model.get_decoder()(input_ids=torch.tensor([token_ids])).last_hidden_state[0]
    return hidden

"""Draft models for tiny checkpoints: copies whose weights differ a little, and strangers with the same tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from corellm_testing.tiny_text import make_tiny_checkpoint


def near(model: Path, folder: Path, noise: float = 0.02) -> Path:
    """Return a copy of a checkpoint in which each weight has some noise: it often says the same."""
    shutil.copytree(model, folder)
    file = folder / "model.safetensors"
    random = torch.Generator().manual_seed(0)
    weights = {
        name: weight + noise * weight.float().std().nan_to_num() * torch.randn(weight.shape, generator=random)
        for name, weight in load_file(file).items()
    }
    save_file({name: weight.to(torch.float32) for name, weight in weights.items()}, file, {"format": "pt"})
    return folder


def stranger(model: Path, folder: Path) -> Path:
    """Return a text model with a checkpoint's tokenizer: it hardly ever says the same."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    make_tiny_checkpoint(folder, vocab_size=max(tokenizer.get_vocab().values()) + 1)
    tokenizer.save_pretrained(folder)
    return folder

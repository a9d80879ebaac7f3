"""The original Qwen-VL keeps the contract: `pytest --pyargs corellm_qwen_vl.original.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from corellm.testing import AdapterContract, Continuation, Media, Reference
from corellm_qwen_vl.original import QwenVL
from corellm_qwen_vl.original.reference import PlainModel, PlainTokenizer, pixels
from corellm_qwen_vl.original.tiny import make_tiny_checkpoint


class QwenVLReference(Reference):
    """The plain forward pass: transformers lacks this model."""

    @cached_property
    def model(self) -> PlainModel:
        """Reads the published names."""
        return PlainModel(self.checkpoint)

    @cached_property
    def tokenizer(self) -> PlainTokenizer:
        """Merges by rank."""
        return PlainTokenizer(self.checkpoint)

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the published layout of tokens, and images resized to a square."""
        outputs: dict[str, Any] = {"input_ids": [self.tokenizer.encode_prompt(text, self.model.num_queries)]}
        if media:
            size = self.model.visual["image_size"]
            outputs["pixel_values"] = torch.stack([pixels(image, size) for image in media["image"]])
        return outputs

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate without the tokens that end a text."""
        ids = self.tokenizer.encode_prompt(text, self.model.num_queries)
        ends = [self.tokenizer.specials[token] for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
        return Continuation(ids, *self.model.generate(ids, media.get("image", ()), max_tokens, never=ends))


class TestQwenVL(AdapterContract):
    """Sixteen tokens an image instead of 256, for speed."""

    adapter = QwenVL
    reference = QwenVLReference
    # `make_context` in qwen_generation_utils.py and `from_list_format` in tokenization_qwen.py of Qwen/Qwen-VL-Chat
    chat_prompts = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is this Picture 1: <img></img>\n?<|im_end|>\n"
        "<|im_start|>assistant\nA circle<|im_end|>\n"
        "<|im_start|>user\nWhich colour?<|im_end|>\n"
        "<|im_start|>assistant\nIt is red.<|im_end|>\n"
        "<|im_start|>user\nPicture 2: <img></img>\nAnd now?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nPicture 1: <img></img>\nAnd now?<|im_end|>\n"
        "<|im_start|>assistant\n",
    )

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        """With fewer queries than published."""
        return make_tiny_checkpoint(path, seed, **{"n_queries": 16, **settings})

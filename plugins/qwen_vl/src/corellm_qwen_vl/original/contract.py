"""The original Qwen-VL keeps the contract: `pytest --pyargs corellm_qwen_vl.original.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from corellm_qwen_vl.original import QwenVL
from corellm_qwen_vl.original.reference import PlainQwenVL, PlainTokenizer, pixels
from corellm_qwen_vl.original.tiny import make_tiny_checkpoint
from corellm_testing import AdapterContract, Continuation, Media, Reference


class QwenVLReference(Reference):
    """The plain forward pass: transformers lacks this model."""

    @cached_property
    def model(self) -> PlainQwenVL:
        """Reads the published names."""
        return PlainQwenVL(self.checkpoint)

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

    # --- what only the family's own `chat` says, in qwen_generation_utils.py ------------------------------------------

    def test_the_checkpoints_window(self, subject: Any, tmp_path: Path) -> None:
        """Whole turns of a conversation are left out until fewer than `max_window_size` tokens are left."""
        images = [{"type": "image", "image": subject.item("image", seed)} for seed in (1, 2)]
        last = {"role": "user", "content": [{"type": "text", "text": "Ask two"}, images[1]]}
        turns = [
            {"role": "user", "content": [images[0], {"type": "text", "text": "Ask one"}]},
            {"role": "assistant", "content": "Say two"},
            last,
        ]
        whole, newest = (subject.inputs.process_chat(messages) for messages in (turns, [last]))
        for most, want in ((len(whole.token_ids) + 1, whole), (len(whole.token_ids), newest)):
            path = self.make_checkpoint(tmp_path / str(most), max_window_size=most)
            with subject.opened({}, path) as inputs:
                got = inputs.process_chat(turns)
            self.require(
                len(got.token_ids) == len(want.token_ids),
                "make_context",
                expected=f"{len(want.token_ids)} tokens, below {most}",
                got=len(got.token_ids),
                fix="keep the newest turns that have fewer tokens, with those of images, than the checkpoint's window",
            )

    def test_the_stop_words(self, subject: Any) -> None:
        """`get_stop_words_ids`: the end of a message and the start of another end an answer."""
        stops = subject.context.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        fix = "set model.generation_config.eos_token_id"
        self.require(
            set(stops) <= subject.end_token_ids, "load_model", expected=stops, got=subject.end_token_ids, fix=fix
        )

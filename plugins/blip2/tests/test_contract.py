"""BLIP-2 and InstructBLIP, with images and with videos, keep the contract.

BLIP-2 also where the embedding table ends before the image token.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

from corellm_blip2 import Blip2
from corellm_blip2.contract import Blip2Reference
from corellm_blip2.contract import TestBlip2 as TestBlip2
from corellm_blip2.instruct.contract import TestInstructBlip as TestInstructBlip
from corellm_blip2.instruct_video.contract import TestInstructBlipVideo as TestInstructBlipVideo
from corellm_blip2.tiny import make_tiny_checkpoint
from corellm_testing import Continuation
from corellm_testing.contract.greedy import GreedyRules
from corellm_testing.reference import Media, generate_one


class _OtherImageToken(Blip2Reference):
    """Transformers cannot embed such a prompt: another token, absent from prompts, stands for the image there."""

    @cached_property
    def model(self) -> Any:
        other = self.processor.tokenizer.pad_token_id
        return transformers.Blip2ForConditionalGeneration.from_pretrained(
            self.checkpoint, dtype=torch.float32, image_token_index=other
        ).eval()

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        inputs = self.process(text, media, kwargs)
        ids, tokenizer = inputs["input_ids"], self.processor.tokenizer
        image, other = tokenizer.convert_tokens_to_ids("<image>"), tokenizer.pad_token_id
        assert image == self.model.get_input_embeddings().num_embeddings
        assert other not in ids
        if not media:
            return generate_one(self.model.language_model, inputs, max_tokens)
        output = generate_one(self.model, {**inputs, "input_ids": ids.masked_fill(ids == image, other)}, max_tokens)
        return Continuation(ids[0].tolist(), output.token_ids, output.logprobs)


class TestNoEmbeddingOfTheImageToken(GreedyRules):
    """The image takes its embeddings all the same."""

    adapter = Blip2
    reference = _OtherImageToken

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        return make_tiny_checkpoint(path, seed + 1, **{"embed_image_token": False, "num_layers": 4, **settings})

"""DeepSeek-VL2 keeps the contract: `pytest --pyargs corellm_deepseek_vl2.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from corellm_deepseek_vl2 import DeepseekVL2
from corellm_deepseek_vl2.reference import PlainDeepseek, PlainProcessor
from corellm_testing import AdapterContract, Continuation, Media, Reference


class DeepseekVL2Reference(Reference):
    """The plain forward pass: transformers lacks this model. Images are cut whatever their number."""

    @cached_property
    def model(self) -> PlainDeepseek:
        """Reads the published names."""
        return PlainDeepseek(self.checkpoint)

    @cached_property
    def processor(self) -> PlainProcessor:
        """Cuts tile by tile."""
        return PlainProcessor(self.checkpoint)

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the published layout of tokens, and the views of all images."""
        views = [self.processor.views(image, **kwargs) for image in media.get("image", ())]
        outputs: dict[str, Any] = {"input_ids": [self.processor.encode(text, [tiles for _, tiles in views])]}
        if views:
            outputs["pixel_values"] = torch.cat([pixels for pixels, _ in views])
            outputs["images_spatial_crop"] = torch.tensor([tiles for _, tiles in views])
        return outputs

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate without the token that ends a text."""
        views = [self.processor.views(image, **kwargs) for image in media.get("image", ())]
        ids = self.processor.encode(text, [tiles for _, tiles in views])
        images = [self.model.encode_image(*each) for each in views]
        never = [self.processor.eos]
        return Continuation(ids, *self.model.generate(ids, self.processor.image_id, images, max_tokens, never))


class TestDeepseekVL2(AdapterContract):
    """Latent attention and experts; a plain forward pass is the reference."""

    adapter = DeepseekVL2
    architecture = "deepseek_vl_v2"
    reference = DeepseekVL2Reference
    processor_kwargs = ({"cropping": False},)
    argument_values = {"cropping": (False, True)}
    # `format_messages_v2` of processing_deepseek_vl_v2.py and conversation.py, in deepseek-ai/DeepSeek-VL2
    chat_prompts = (
        "Be brief.<|User|>: What is this <image>\n?\n\n<|Assistant|>:A circle<｜end▁of▁sentence｜>"
        "<|User|>: Which colour?\n\n<|Assistant|>:It is red.<｜end▁of▁sentence｜>"
        "<|User|>: <image>\nAnd now?\n\n<|Assistant|>:",
        "<|User|>: <image>\nAnd now?\n\n<|Assistant|>:",
    )

"""Idefics2 keeps the contract: `pytest --pyargs corellm_idefics2.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from corellm_idefics2 import Idefics2
from corellm_testing import AdapterContract, Media, Reference


class Idefics2Reference(Reference):
    """Transformers' model and processor, which writes tokens of images that it splits also where a request asks."""

    @cached_property
    def processor(self) -> Any:
        """Made without torchvision."""
        from corellm_idefics2.processor import make_processor

        return make_processor(self.checkpoint)

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output, its own setting being the request's: its text follows that setting alone.

        The tokenizer takes "▁" (U+2581) for a space, and the processor puts a space before it, as before a word. No
        token tells the two apart, so here it is a space.
        """
        text = text.replace("▁", " ")
        images = self.processor.image_processor
        usual = images.do_image_splitting
        images.do_image_splitting = kwargs.get("do_image_splitting", usual)
        try:
            return super().process(text, media, kwargs)
        finally:
            images.do_image_splitting = usual

    def same(self, name: str, ours: Any, theirs: Any) -> bool:
        """Compare an image's own part; the processor fills all images of a prompt up to the largest, with zeros."""
        height, width = ours.shape[-2:]
        filling = theirs.clone()
        filling[..., :height, :width] = 0
        return super().same(name, ours, theirs[..., :height, :width]) and not filling.any()


class TestIdefics2(AdapterContract):
    """SigLIP, a resampler and Mistral; transformers is the reference."""

    adapter = Idefics2
    reference = Idefics2Reference
    # the chat template of HuggingFaceM4/idefics2-8b
    chat_prompts = (
        "System: Be brief.<end_of_utterance>\n"
        "User: What is this <image>?<end_of_utterance>\n"
        "Assistant: A circle<end_of_utterance>\n"
        "User: Which colour?<end_of_utterance>\n"
        "Assistant: It is red.<end_of_utterance>\n"
        "User:<image>And now?<end_of_utterance>\nAssistant:",
        "User:<image>And now?<end_of_utterance>\nAssistant:",
    )

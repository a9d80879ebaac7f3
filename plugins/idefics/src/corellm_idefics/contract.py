"""IDEFICS keeps the contract: `pytest --pyargs corellm_idefics.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, ClassVar

from corellm_idefics import Idefics
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class IdeficsReference(Reference):
    """Transformers' model and processor, which takes a prompt as a list of texts and images."""

    ignored_tensors: ClassVar[Mapping[str, str]] = {"image_attention_mask": "the adapter says what each token sees"}

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output for the texts around the images, and the images.

        The tokenizer takes "▁" (U+2581) for a space, of which the processor strips texts. No token tells the two
        apart, so here it is a space.
        """
        first, *texts = text.replace("▁", " ").split("<image>")
        between = chain.from_iterable(zip(media.get("image", ()), texts, strict=True))
        prompt = [part for part in (first, *between) if part != ""]
        return dict(self.processor(text=[prompt], return_tensors="pt", **kwargs))

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate with interpolated positions, as the plugin does: at the tower's own size they do not change."""
        inputs = {**self.process(text, media, kwargs), "interpolate_pos_encoding": True}
        return generate_one(self.model, inputs, max_tokens)


class TestIdefics(AdapterContract):
    """Layers of images among a Llama's, with gates; transformers is the reference."""

    adapter = Idefics
    reference = IdeficsReference
    without_effect: ClassVar[Mapping[str, str]] = {
        "do_resize": "refused: an image as large as it comes needs memory that was not planned",
        "image_size": "refused: the processor reads it when it is made, and of a request `size` alone",
        "transform": "refused: it is a function, for training",
    }
    # the model card of HuggingFaceM4/idefics-9b-instruct
    chat_prompts = (
        "System: Be brief.<end_of_utterance>\n"
        "User: What is this <image>?<end_of_utterance>\n"
        "Assistant: A circle<end_of_utterance>\n"
        "User: Which colour?<end_of_utterance>\n"
        "Assistant: It is red.<end_of_utterance>\n"
        "User:<image>And now?<end_of_utterance>\nAssistant:",
        "User:<image>And now?<end_of_utterance>\nAssistant:",
    )

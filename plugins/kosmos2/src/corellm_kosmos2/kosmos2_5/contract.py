"""Kosmos-2.5 keeps the contract: `pytest --pyargs corellm_kosmos2.kosmos2_5.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from corellm_kosmos2.kosmos2_5 import Kosmos2_5
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class Kosmos2_5Reference(Reference):
    """Transformers' model and processor; in a prompt's tokens the padding token stands for the image."""

    ignored_tensors: ClassVar[Mapping[str, str]] = {
        "image_embeds_position_mask": "the placeholder says which they are",
        "width": "the model does not read it",
        "height": "the model does not read it",
    }

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output, with the padding token where its mask has an embedding."""
        outputs = self._process(text, media, kwargs)
        if media:
            places = outputs["image_embeds_position_mask"] == 1
            outputs["input_ids"] = outputs["input_ids"].masked_fill(places, self.processor.tokenizer.pad_token_id)
        return outputs

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate from the processor's own tokens."""
        inputs = self._process(text, media, kwargs)
        model = self.model if media else self.model.text_model
        output = generate_one(model, inputs, max_tokens)
        return replace(output, prompt_token_ids=self.process(text, media, kwargs)["input_ids"][0].tolist())

    def _process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output, of as many patches as the checkpoint says; it takes no text alone.

        A BOS at a text's beginning is the one that the processor writes there: token ids of a prompt begin with it.
        """
        tokenizer = self.processor.tokenizer
        text = text.removeprefix(tokenizer.bos_token)
        if not media:
            return dict(tokenizer(tokenizer.bos_token + text, return_tensors="pt"))
        return super().process(text, media, {"max_patches": self.processor.image_processor.max_patches, **kwargs})


class TestKosmos2_5(AdapterContract):
    """A Pix2Struct tower and a Magneto decoder; transformers is the reference."""

    adapter = Kosmos2_5
    reference = Kosmos2_5Reference
    processor_kwargs = ({"max_patches": 20}, {"max_patches": 9})
    # the authors publish single texts, "<ocr>" and "<md>" in the model card: a message of one text is that text, and
    # further ones follow on lines of their own
    chat_prompts = ("Be brief.\nWhat is this ?\nA circle\nWhich colour?\nIt is red.\nAnd now?", "And now?")
    same_roles = (("system", "developer", "user", "assistant", "tool"),)  # texts without a mark
    without_effect: ClassVar[Mapping[str, str]] = {
        "patch_size": "refused: the model has weights for patches of one size",
        "do_normalize": "refused: transformers fails without it",
    }

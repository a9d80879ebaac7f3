"""Kosmos-2 keeps the contract: `pytest --pyargs corellm_kosmos2.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from transformers import Kosmos2Model

from corellm_kosmos2 import Kosmos2
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class Kosmos2Reference(Reference):
    """Transformers' model and processor; in a prompt's tokens the padding token stands for the image."""

    ignored_tensors: ClassVar[Mapping[str, str]] = {"image_embeds_position_mask": "the placeholder says which they are"}

    @cached_property
    def model(self) -> Any:
        """Transformers' model, whose latent queries see all patches: up to 5.22 they do so in eager attention alone."""
        model = super().model
        model.image_to_text_projection.x_attn.is_causal = False
        return model

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output, with the padding token where its mask has an embedding."""
        outputs = self._process(text, media, kwargs)
        if media:
            places = outputs["image_embeds_position_mask"] == 1
            outputs["input_ids"] = outputs["input_ids"].masked_fill(places, self.processor.tokenizer.pad_token_id)
        return outputs

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate from the processor's own tokens, and with interpolated positions, as the plugin does.

        At the tower's own size they do not change.
        """
        inputs = self._process(text, media, kwargs)
        if not media:  # which the whole model of transformers 5.17 does not take
            return generate_one(self.model.text_model, inputs, max_tokens)
        pixels = inputs.pop("pixel_values")
        features = Kosmos2Model.get_image_features(self.model, pixels, interpolate_pos_encoding=True)
        output = generate_one(self.model, {**inputs, "image_embeds": features.pooler_output}, max_tokens)
        return replace(output, prompt_token_ids=self.process(text, media, kwargs)["input_ids"][0].tolist())

    def _process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output, once it is told how many tokens the model has for an image."""
        stated = {"num_image_tokens": self.config.latent_query_num} if media else {}
        return super().process(text, media, {**stated, **kwargs})


class TestKosmos2(AdapterContract):
    """A Magneto decoder and CLIP; transformers is the reference."""

    adapter = Kosmos2
    reference = Kosmos2Reference
    # the authors publish single texts, such as "<grounding> An image of" in the model card: a message of one text is
    # that text, and further ones follow on lines of their own
    chat_prompts = ("Be brief.\nWhat is this ?\nA circle\nWhich colour?\nIt is red.\nAnd now?", "And now?")
    same_roles = (("system", "developer", "user", "assistant", "tool"),)  # texts without a mark
    without_effect: ClassVar[Mapping[str, str]] = {
        "bboxes": "refused: boxes are written into the prompt",
        "num_image_tokens": "refused: it is the model's",
        "first_image_token_id": "refused: the padding token stands for an image",
    }

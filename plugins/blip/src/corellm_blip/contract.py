"""BLIP keeps the contract: `pytest --pyargs corellm_blip.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from corellm_blip import Blip
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class BlipReference(Reference):
    """Transformers' model; its text decoder alone for prompts without an image, which its BLIP does not take."""

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the image's pixels, and the tokens that the model's `generate` makes of the processor's.

        Without an image, the processor's own but for the last one, which `generate` drops.
        """
        outputs = super().process(text, media, kwargs)
        tokens = outputs["input_ids"][:, :-1].clone()
        if not media:
            return {"input_ids": tokens}
        tokens[:, 0] = self.config.text_config.bos_token_id
        return {"input_ids": tokens, "pixel_values": outputs["pixel_values"]}

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate from the processor's own output, and with interpolated positions, as the plugin does.

        At the tower's own size they do not change.
        """
        inputs = self.process(text, media, kwargs)
        end: int = self.config.text_config.sep_token_id
        if media:
            given = {**super().process(text, media, kwargs), "interpolate_pos_encoding": True}
            made = generate_one(self.model, given, max_tokens)
        else:
            made = generate_one(self.model.text_decoder, {**inputs, "eos_token_id": end}, max_tokens)
        return replace(made, prompt_token_ids=inputs["input_ids"][0].tolist(), end_token_ids=frozenset({end}))


class TestBlip(AdapterContract):
    """A tower like ViT, layers like BERT's that attend to its outputs, too; transformers is the reference."""

    adapter = Blip
    reference = BlipReference
    # published is the use of single texts; the model knows no turns: all texts, line by line
    chat_prompts = ("Be brief.\nWhat is this ?\nA circle\nWhich colour?\nIt is red.\nAnd now?", "And now?")
    same_roles = (("system", "developer", "tool", "user", "assistant"),)
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_greedy_equals_the_reference": "an image is one token, so the beginning that its prompts share is shorter "
        "than a block; the plugin's own tests compare outputs in chunks, with a prefix cache of shorter blocks",
    }

"""PaliGemma keeps the contract: `pytest --pyargs corellm_paligemma.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from corellm_paligemma import PaliGemma
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one

_SIZE = "refused: the tower takes images of one size"


class PaliGemmaReference(Reference):
    """Transformers' model and processor, and its tokenizer for texts alone, which the processor does not take."""

    @cached_property
    def model(self) -> Any:
        """With eager attention: transformers' default one ignores Gemma 2's caps."""
        model = super().model
        model.set_attn_implementation("eager")
        return model

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        r"""Return a text alone as `<bos>text\n`: what the processor makes of it behind images."""
        if media:
            return super().process(text, media, kwargs)
        tokenizer = self.processor.tokenizer  # adds nothing itself: the processor turned it off
        begun = text if text.startswith(tokenizer.bos_token) else tokenizer.bos_token + text
        prompt = begun if begun.endswith("\n") else begun + "\n"
        return dict(tokenizer(prompt, return_tensors="pt", return_token_type_ids=True))

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate without the labels, which are for training."""
        inputs = self.process(text, media, kwargs)
        inputs.pop("labels", None)
        return generate_one(self.model, inputs, max_tokens)


class TestPaliGemma(AdapterContract):
    """Gemma, and Gemma 2 with a layer that has a window; transformers is the reference."""

    adapter = PaliGemma
    reference = PaliGemmaReference
    # an image, then BOS, text and a line break, as by transformers' `PaliGemmaProcessor`; only single texts are
    # published, so further ones follow on lines of their own
    chat_prompts = (
        "<image><image><bos>Be brief.\nWhat is this ?\nA circle\nWhich colour?\nIt is red.\nAnd now?\n",
        "<image><bos>And now?\n",
    )
    same_roles = (("system", "developer", "user", "assistant", "tool"),)  # lines of text
    without_effect: ClassVar[Mapping[str, str]] = {
        "do_resize": _SIZE,
        "size": _SIZE,
        "crop_size": _SIZE,
        "do_center_crop": _SIZE,
    }
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_every_text_is_said_in_its_place": "a conversation's image stands before its texts, as in training: "
        "behind BOS there is text alone",
    }

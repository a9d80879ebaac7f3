"""Voxtral keeps the contract: `pytest --pyargs corellm_voxtral.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch

from corellm_testing import AdapterContract, Continuation, Media, Reference
from corellm_testing.reference import generate_one
from corellm_voxtral import Voxtral
from corellm_voxtral.files import load_processor, load_tokenizer


class VoxtralReference(Reference):
    """Transformers' processor, whose tokenizer and spectrograms are asked for apart: together it takes conversations.

    How many tokens an item has is the number of embeddings that transformers' model makes of it.
    """

    @cached_property
    def processor(self) -> Any:
        """Transformers' processor with its own tokenizer, also where mistral-common is installed."""
        return load_processor(self.checkpoint, load_tokenizer(self.checkpoint))

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tokenizer's tokens, each audio token as often as its item has embeddings, and items' chunks."""
        items = [self._chunks(item, kwargs) for item in media.get("audio", ())]
        begun, *rest = text.split(self.processor.audio_token)
        for item, after in zip(items, rest, strict=True):
            begun += self.processor.audio_token * len(self.model.get_audio_features(item).pooler_output) + after
        output = {"input_ids": self.processor.tokenizer(begun, return_tensors="pt")["input_ids"]}
        return {**output, "input_features": items} if items else output

    def _chunks(self, item: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return an item's spectrogram `[chunks, mel, frames]`.

        With the processor's own arguments, which releases of transformers keep in different places; but for the
        lengths, which are those of 30 seconds there.
        """
        extractor, frames = self.processor.feature_extractor, 2 * self.config.audio_config.max_source_positions
        usual = {"sampling_rate": extractor.sampling_rate, "padding": True, "truncation": False, "return_tensors": "pt"}
        lengths = {"max_source_positions": frames, "pad_to_multiple_of": frames * extractor.hop_length}
        return self.processor._retrieve_input_features([item], **{**usual, **lengths, **kwargs})

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Return transformers' greedy continuation; the model gets the chunks of all items."""
        inputs = self.process(text, media, kwargs)
        if media:
            inputs["input_features"] = torch.cat(inputs["input_features"])
        return generate_one(self.model, inputs, max_tokens)


class TestVoxtral(AdapterContract):
    """Chunks of four seconds: longer audio becomes several."""

    adapter = Voxtral
    reference = VoxtralReference
    processor_kwargs = ({"truncation": True},)
    without_effect: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("max_length", "max_source_positions", "pad_to_multiple_of", "padding"),
            "refused: the encoder takes chunks of one length only",
        ),
        "load_audio_backend": "refused: audio is decoded before the processor is called",
    }
    # what mistral-common makes of these conversations, which a test beside it compares with the adapter
    chat_prompts = (
        "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]What is\n\n this [BEGIN_AUDIO][AUDIO]?[/INST]A circle</s>"
        "[INST]Which colour?[/INST]It is red.</s>[INST][BEGIN_AUDIO][AUDIO]And now?[/INST]",
        "<s>[INST][BEGIN_AUDIO][AUDIO]And now?[/INST]",
    )

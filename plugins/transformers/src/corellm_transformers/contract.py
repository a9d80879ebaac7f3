"""The generic adapter keeps the contract: `pytest --pyargs corellm_transformers.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar

import torch

from corellm_testing import AdapterContract
from corellm_testing.contract.greedy import GreedyRules
from corellm_testing.contract.pairs import PairRules
from corellm_testing.contract.perception import PerceptionRules
from corellm_testing.reference import Continuation, Media, Reference, generate_one
from corellm_transformers import TransformersModel
from corellm_transformers.configurations import read_config
from corellm_transformers.encoder_decoders import reference as encoder_decoders
from corellm_transformers.family import without_text
from corellm_transformers.forward import certain
from corellm_transformers.placeholders import candidates
from corellm_transformers.processors import read_processor


class AnyReference(Reference):
    """Transformers' processor as the adapter reads it, which needs no torchvision, and transformers' `generate`."""

    @cached_property
    def processor(self) -> Any:
        """The Hugging Face processor."""
        return read_processor(self.checkpoint)

    @cached_property
    def config(self) -> Any:
        """The configuration that transformers reads, or that of the part that writes text."""
        return read_config(self.checkpoint)

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's tokens for text and media together, and its tensors for each item alone.

        Items are processed alone by the adapter, too; `generate` gets the processor's tensors for all together.
        """
        if self.config.is_encoder_decoder:
            return encoder_decoders.inputs_of(self, text, media, kwargs)
        output = {"input_ids": self.together(text, media, kwargs)["input_ids"]}
        for modality, items in media.items():
            placeholder = max((one for one in candidates(self.processor, modality) if one in text), key=len)
            alone = [self.together(placeholder, {modality: [item]}, kwargs) for item in items]
            tensors = [without_text(one) for one in alone]
            output |= {name: [one[name] for one in tensors] for name in tensors[0]}
        return output

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Return transformers' greedy continuation of one request, of exactly `max_tokens` tokens."""
        if self.config.is_encoder_decoder:
            return encoder_decoders.continuation_of(self, text, media, kwargs, max_tokens)
        fixed = certain(signature(self.model.forward).parameters) if media else {}
        return generate_one(self.model, {**self.together(text, media, kwargs), **fixed}, max_tokens)

    def together(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output, with the types of tokens where the model asks for them.

        Some processors take no text without an item: their tokenizer does.
        """
        try:
            output = super().process(text, media, kwargs)
        except (TypeError, ValueError):
            if media:
                raise
            output = dict(self.processor.tokenizer(text, return_tensors="pt"))
        name = "mm_token_type_ids"
        if name in signature(self.model.forward).parameters and name not in output:
            output[name] = torch.tensor(self.processor.create_mm_token_type_ids(output["input_ids"]))
        return output


_WHEN_IT_RUNS = "which sizes a model takes shows when it runs; its error fails the one request"


class AnyModel(GreedyRules, PairRules, PerceptionRules):
    """Outputs are transformers' own."""

    adapter = TransformersModel
    reference = AnyReference


class AnyContract(AdapterContract):
    """All rules, but those that an adapter of any model cannot keep."""

    adapter = TransformersModel
    reference = AnyReference
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_embeddings_are_refused_for_a_reason": "an item's tokens are what the processor makes of its media",
        "test_every_value_is_embedded_or_refused": _WHEN_IT_RUNS,
        "test_arguments_may_differ_in_a_batch": _WHEN_IT_RUNS,
    }


class TestLlavaNextForConditionalGeneration(AnyContract):
    """LLaVA-NeXT: an image becomes tiles, as many as suit its sides."""

    architecture = "LlavaNextForConditionalGeneration"

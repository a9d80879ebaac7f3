"""Molmo keeps the contract: `pytest --pyargs corellm_molmo.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from corellm_molmo import Molmo
from corellm_molmo.reference import PlainMolmo, PlainProcessor
from corellm_testing import AdapterContract, Continuation, Media, Reference


class MolmoReference(Reference):
    """The plain forward pass: transformers lacks this model."""

    @cached_property
    def model(self) -> PlainMolmo:
        """Reads the published names."""
        return PlainMolmo(self.checkpoint)

    @cached_property
    def processor(self) -> PlainProcessor:
        """Cuts by loops."""
        return PlainProcessor(self.checkpoint)

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the published tensors, each as a list of one."""
        outputs = self.processor(text, media.get("image", ()), **kwargs)
        return {name: [value] for name, value in outputs.items()}

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate without the token that ends a text."""
        inputs = self.processor(text, media.get("image", ()), **kwargs)
        return Continuation(inputs["input_ids"], *self.model.generate(inputs, max_tokens, never=self.processor.end))


class TestMolmo(AdapterContract):
    """A Qwen2 decoder; crops of 48 pixels instead of 336, for speed."""

    adapter = Molmo
    reference = MolmoReference
    processor_kwargs = ({"max_crops": 2},)

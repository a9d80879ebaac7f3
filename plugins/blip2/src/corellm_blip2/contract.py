"""BLIP-2 keeps the contract: `pytest --pyargs corellm_blip2.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from corellm_blip2 import Blip2
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class Blip2Reference(Reference):
    """Transformers' model; its text model alone for prompts without an image, which its BLIP-2 does not take."""

    @cached_property
    def processor(self) -> Any:
        """Transformers' processor, told the number of queries where its configuration does not state it."""
        processor = super().processor
        processor.num_query_tokens = processor.num_query_tokens or self.model.config.num_query_tokens
        return processor

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate with interpolated positions, as the plugin does; at the tower's own size they do not change."""
        inputs = self.process(text, media, kwargs)
        if not media:
            return generate_one(self.model.language_model, inputs, max_tokens)
        return generate_one(self.model, {**inputs, "interpolate_pos_encoding": True}, max_tokens)


class TestBlip2(AdapterContract):
    """OPT, tied embeddings."""

    adapter = Blip2
    reference = Blip2Reference
    processor_kwargs = ({"do_normalize": False}, {"size": {"height": 28, "width": 42}})
    # the paper's prompt for questions (arXiv:2301.12597), with earlier turns before it as in the original repository
    # (LAVIS, examples/blip2_instructed_generation.ipynb)
    chat_prompts = (
        "Be brief. Question: What is this ? Answer: A circle. Question: Which colour? Answer: It is red. "
        "Question: And now? Answer:",
        "Question: And now? Answer:",
    )
    same_roles = (("system", "developer", "tool"),)  # text as it is: the form has questions and answers

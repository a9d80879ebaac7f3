"""InstructBLIP keeps the contract: `pytest --pyargs corellm_blip2.instruct.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from corellm_blip2.instruct import InstructBlip
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class InstructBlipReference(Reference):
    """Transformers' model; its text model alone for prompts without an image, which its InstructBLIP does not take."""

    ignored_tensors = {"qformer_attention_mask": "no instruction is padded: all of them are read"}

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
            alone = {name: tensor for name, tensor in inputs.items() if not name.startswith("qformer_")}
            return generate_one(self.model.language_model, alone, max_tokens)
        return generate_one(self.model, {**inputs, "interpolate_pos_encoding": True}, max_tokens)


class TestInstructBlip(AdapterContract):
    """Llama, as Vicuna is."""

    adapter = InstructBlip
    reference = InstructBlipReference
    processor_kwargs = ({"do_normalize": False}, {"size": {"height": 28, "width": 42}})
    # the published use, an instruction as it is; the model knows no turns: all texts, line by line
    chat_prompts = ("Be brief.\nWhat is this ?\nA circle\nWhich colour?\nIt is red.\nAnd now?", "And now?")
    same_roles = (("system", "developer", "tool", "user", "assistant"),)

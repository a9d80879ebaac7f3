"""Fuyu keeps the contract: `pytest --pyargs corellm_fuyu.contract`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from corellm_fuyu import Fuyu
from corellm_fuyu.processor import load_processor
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class FuyuReference(Reference):
    """Transformers' model and processor, with patches in the plugin's shape."""

    @cached_property
    def processor(self) -> Any:
        """Transformers' processor; without torchvision, some releases' fails on its own tensors."""
        return load_processor(self.checkpoint)

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the patches as `[1, rows, columns, values]`: a row ends with a newline token."""
        outputs = super().process(text, media, kwargs)
        if media:
            patches = outputs["image_patches"]
            rows = int((outputs["input_ids"] == self.processor.image_newline_id).sum())
            outputs["image_patches"] = patches.reshape(1, rows, -1, patches.shape[-1])
        return outputs

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate from flat patches, `[1, patches, values]`."""
        inputs = self.process(text, media, kwargs)
        if media:
            inputs["image_patches"] = inputs["image_patches"].flatten(1, 2)
        return generate_one(self.model, inputs, max_tokens)


class TestFuyu(AdapterContract):
    """Persimmon."""

    adapter = Fuyu
    reference = FuyuReference
    # a line of text, then the answer behind its token, as in the model card and in transformers' `FuyuProcessor`, which
    # adds the token where there is an image; only single turns are published, so further ones follow in the same form
    chat_prompts = (
        "Be brief.\nWhat is this ?\n<0x04>A circle\nWhich colour?\n<0x04>It is red.\nAnd now?\n",
        "And now?\n<0x04>",
    )
    same_roles = (("system", "developer", "user", "tool"),)  # lines of text; only the answer has a token of its own
    argument_values: ClassVar[Mapping[str, Sequence[Any]]] = {"padding_mode": ("edge", "reflect")}

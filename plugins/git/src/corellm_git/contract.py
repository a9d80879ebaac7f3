"""GIT keeps the contract: `pytest --pyargs corellm_git.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from corellm_git import Git
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one


class GitReference(Reference):
    """Transformers' model, which continues a text as in the published use: behind `[CLS]`, without `[SEP]`."""

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the image's pixels, and the text's tokens behind one of padding for each of the tower's outputs."""
        inputs = self._inputs(text, media, kwargs)
        tokens, count = inputs["input_ids"], 0
        if media:
            with torch.inference_mode():
                seen = self.model.git.image_encoder(inputs["pixel_values"], interpolate_pos_encoding=True)
            count = seen.last_hidden_state.shape[1]
        padding = tokens.new_full((1, count), self.processor.tokenizer.pad_token_id)
        return {**inputs, "input_ids": torch.cat([padding, tokens], dim=1)}

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate without a cache: with one, transformers 5.17 gives generated tokens positions behind the image's."""
        made = generate_one(self.model, {**self._arguments(text, media, kwargs), "use_cache": False}, max_tokens)
        prompt = self.process(text, media, kwargs)["input_ids"][0].tolist()
        return Continuation(prompt, made.token_ids, made.logprobs, made.end_token_ids, made.masked_token_ids)

    def visible_tokens(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> Mapping[int, Tensor]:
        """Return by layer which tokens of a prompt each sees, as the masks say that its attention is given."""
        seen: dict[int, Tensor] = {}

        def note(layer: nn.Module, given: tuple[Any, ...]) -> None:
            index: Any = layer.layer_idx
            seen[index] = given[1][0, 0] >= 0

        with ExitStack() as hooks, torch.inference_mode():
            for layer in self.model.git.encoder.layer:
                hooks.enter_context(layer.attention.self.register_forward_pre_hook(note))
            self.model(**self._arguments(text, media, kwargs), use_cache=False)
        return seen

    def _inputs(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the image's pixels and the text's tokens."""
        outputs = super().process(text, media, kwargs)
        pixels = {"pixel_values": outputs["pixel_values"]} if media else {}
        return {"input_ids": outputs["input_ids"][:, :-1], **pixels}

    def _arguments(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's arguments: with interpolated positions, which at the tower's own size do not change."""
        return {**self._inputs(text, media, kwargs), **({"interpolate_pos_encoding": True} if media else {})}


class TestGit(AdapterContract):
    """A tower like CLIP's, layers like BERT's; transformers is the reference."""

    adapter = Git
    reference = GitReference
    # published is the use of single texts; the model knows no turns: all texts, line by line
    chat_prompts = ("Be brief.\nWhat is this ?\nA circle\nWhich colour?\nIt is red.\nAnd now?", "And now?")
    same_roles = (("system", "developer", "tool", "user", "assistant"),)

"""What the decoder begins with: what `generate` does, and a prompt's text behind it.

Knows tokenizers and the outline of a model; knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import PromptError
from corellm.hookspecs import DecoderPrompt, ModelContext
from corellm_transformers.encoder_decoders.outline import Beginning, Outline

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Prompts:
    """The decoder's prompts of one checkpoint.

    Args:
        context: of the model.
        outline: of the model.
        tensors: of a small item, for which `generate` is watched.
    """

    def __init__(self, context: ModelContext, outline: Outline, tensors: Mapping[str, Any]) -> None:
        self._context, self._outline, self._tensors = context, outline, tensors

    @cached_property
    def beginning(self) -> Beginning:
        """What `generate` begins with."""
        return self._outline.beginning(self._tensors)

    @property
    def stand_in(self) -> int:
        """The token in the places of states: one of padding, where there is one."""
        tokenizer = self._context.tokenizer
        known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        return next(int(token) for token in known if token is not None)

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and behind every text."""
        tokenize = self._context.tokenizer
        bare, whole = (list(tokenize("a", add_special_tokens=more)["input_ids"]) for more in (False, True))
        start = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:start], whole[start + len(bare) :]

    def bare(self, token_ids: Sequence[int]) -> list[int]:
        """Return a text's tokens without what the tokenizer puts around texts."""
        before, after = self._ends
        tokens = list(token_ids)
        if after and tokens[-len(after) :] == after:
            tokens = tokens[: -len(after)]
        return tokens[len(before) :] if tokens[: len(before)] == before else tokens

    def of(self, text: Sequence[int], num_states: int) -> DecoderPrompt:
        """Return the decoder's prompt: the text, if it begins as `generate` does, else behind what that begins with.

        Raises:
            PromptError: the model is to choose a language first, so that there is nothing yet for the text to continue.
        """
        known = self.beginning
        if text and text[0] == known.tokens[0]:
            return DecoderPrompt(list(text), num_states, not_first=known.not_first)
        if text and known.choices:
            raise PromptError(
                "the model first writes the language that it hears; leave the text out, or begin it with all that the "
                f"model is told, such as {self._context.tokenizer.decode(self._example)!r}"
            )
        return DecoderPrompt([*known.tokens, *text], num_states, known.choices, known.not_first)

    @property
    def _example(self) -> list[int]:
        """The decoder's tokens with a language."""
        return [*self.beginning.tokens, *(tokens[0] for tokens in self.beginning.choices)]

    def suppressed(self, device: torch.device) -> Tensor | None:
        """Return the tokens that `generate` never lets come, on a device; None if there are none."""
        if not self.beginning.suppressed:
            return None
        if device not in self._suppressed:
            import torch

            self._suppressed[device] = torch.tensor(self.beginning.suppressed, device=device)
        return self._suppressed[device]

    @cached_property
    def _suppressed(self) -> dict[torch.device, Tensor]:
        return {}

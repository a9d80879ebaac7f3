"""What the decoder begins with: what `generate` does, and a prompt's text behind it.

Knows tokenizers and the outline of a model; knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError, PromptError
from corellm.hookspecs import DecoderPrompt, ModelContext
from corellm_transformers.encoder_decoders.outline import Beginning, Outline

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FIELDS = {"language": "language", "prompt_ids": "prompt"}
"""Fields of a request for a transcription, by arguments of `generate`."""


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
        known, start = self.beginning, self.beginning.tokens[0]
        if start in text:
            at = len(text) - list(text)[::-1].index(start)
            begun, behind = list(text[:at]), list(text[at:])
            if known.choices and self._leaves_language_out(behind):
                forced = tuple((token,) for token in behind) or known.choices[1:]
                return DecoderPrompt(begun, num_states, (known.choices[0], *forced), known.not_first)
            return DecoderPrompt([*begun, *behind], num_states, not_first=known.not_first)
        if text and known.choices:
            raise PromptError(
                "the model first writes the language that it hears; leave the text out, or begin it with all that the "
                f"model is told, such as {self._context.tokenizer.decode(self._example)!r}"
            )
        return DecoderPrompt([*known.tokens, *text], num_states, known.choices, known.not_first)

    @cached_property
    def _special(self) -> frozenset[int]:
        """Tokens that stand for no text, those of times among them, which tokenizers do not call special."""
        tokenizer = self._context.tokenizer
        return frozenset([*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder])

    def _leaves_language_out(self, behind: Sequence[int]) -> bool:
        """Whether only special tokens are behind the one that the decoder starts from, and no language first."""
        if not self._special.issuperset(behind):
            return False
        return not behind or behind[0] not in self.beginning.choices[0]

    def transcription(self, language: str | None, translate: bool, context: str) -> list[int] | None:
        """Return what `generate` begins with where it is told these, without a language that it is to choose.

        None where there is nothing to tell it.

        Raises:
            PromptError: it cannot be told one of them; names it.
        """
        if not (language or translate or context):
            return None
        beginning = self._told(language, translate, context)
        return [*beginning.tokens, *(tokens[0] for tokens in beginning.choices[1:])]

    def timed(
        self, without: int, language: str | None, translate: bool, context: str, heard: int | None
    ) -> list[int] | None:
        """Return what `generate` begins with where times are to come; None if a language must be heard first.

        Args:
            without: the token that says that no times come.
            language, translate, context: what it is told.
            heard: the token of the language that was heard.

        Raises:
            PromptError: it cannot be told one of them; names it.
        """
        beginning = self._told(language, translate, context)
        if beginning.choices and heard is None:
            return None
        tokens = list(beginning.tokens)
        if heard is not None and beginning.choices:
            tokens += [heard, *(forced[0] for forced in beginning.choices[1:])]
        return tokens[:-1] if tokens[-1] == without else tokens

    def _told(self, language: str | None, translate: bool, context: str) -> Beginning:
        """Return what `generate` does where it is told these.

        Raises:
            PromptError: it cannot be told one of them; names it.
        """
        told: dict[str, Any] = {}
        if language:
            told["language"] = language
        if translate:
            told["task"] = "translate"
        if context:
            told["prompt_ids"] = context
        if not told:
            return self.beginning
        for argument in told.keys() - self._outline.arguments:
            said = "to translate" if argument == "task" else f"a {_FIELDS[argument]}"
            raise PromptError(f"this model cannot be told {said}; leave it out", param=_FIELDS.get(argument))
        if context:
            told["prompt_ids"] = self._before(context)
        try:
            return self._outline.beginning(self._tensors, **told)
        except (CheckpointError, ValueError) as error:
            reason = " ".join(str(error.__cause__ or error).split())[:300]
            raise PromptError(
                f"the model cannot be told this: {reason}", param=_FIELDS.get(next(iter(told)))
            ) from error

    def _before(self, context: str) -> Tensor:
        """Return what was said before, as `generate` takes it: `[num_tokens]`, a token that says so and the text's.

        Raises:
            PromptError: the text has special tokens, or the checkpoint does not name the one that says so.
        """
        import torch

        start = self._outline.start_of_earlier
        if start is None:
            raise PromptError(
                "prompt: this model cannot be told what was said before, as its generation_config.json has no "
                "prev_sot_token_id; leave it out",
                param="prompt",
            )
        tokens = self._context.tokenizer(" " + context.strip(), add_special_tokens=False)["input_ids"]
        if special := self._special.intersection(tokens):
            said = self._context.tokenizer.decode(min(special))
            raise PromptError(f"prompt: {said!r} stands for no text; leave it out", param="prompt")
        return torch.tensor([start, *tokens])

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

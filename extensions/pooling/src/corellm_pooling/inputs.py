"""Prepares prompts to be pooled: texts with a name, pairs of texts, queries and documents of a ColBERT model.

Knows what a checkpoint states of its texts; items, tokens and limits are `InputProcessor`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

from corellm.errors import PromptError
from corellm.prompts import is_unicode
from corellm.serving import InputProcessor, ProcessedPrompt
from corellm_pooling.late_interaction import TextSide
from corellm_pooling.text_pairs import TextPair, encode_pair

_FIELDS = fields_of(ProcessedPrompt)


@dataclass
class PooledPrompt(ProcessedPrompt):
    """A prompt that the engine can schedule, and what its texts are."""

    pair: TextPair | None = None
    """Where the two texts of a prompt are; None for a prompt of one."""
    side: TextSide | None = None
    """How the text is read, by a ColBERT model; the tokens that fill a query up come after truncation."""

    @classmethod
    def of(cls, prompt: ProcessedPrompt, pair: TextPair | None = None, side: TextSide | None = None) -> PooledPrompt:
        """Return a prompt with what its texts are."""
        return cls(**{field.name: getattr(prompt, field.name) for field in _FIELDS}, pair=pair, side=side)

    def limit(self, longest: int) -> int:
        """Return the most tokens that it may have, of a model that takes `longest`."""
        most = None if self.side is None else self.side.max_tokens
        return longest if most is None else min(most, longest)


class PooledInputs(InputProcessor):
    """Prepares prompts for one model that pools.

    Args:
        *args, **kwargs: as of `InputProcessor`.
        named: texts to put before a prompt's text, by name (`"prompt_name"`).
        default_name: the name where a prompt has none; None for no text.
        sides: how texts under some of these names are read; then a text without a name is refused.
    """

    prompt_keys = InputProcessor.prompt_keys | {"text_pair", "prompt_name"}
    takes_empty_texts = True

    def __init__(
        self,
        *args: Any,
        named: Mapping[str, str] | None = None,
        default_name: str | None = None,
        sides: Mapping[str, TextSide] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._named, self._default_name, self._sides = named or {}, default_name, sides or {}

    def process_fields(self, fields: Mapping[str, Any]) -> PooledPrompt:
        """Prepare a prompt that is a dictionary with known keys; errors as of `process`."""
        is_text = fields.get("prompt_token_ids") is None
        pair = None
        if is_text and fields.get("text_pair") is not None:
            token_ids, pair = self._encode_pair(fields)
            fields = {**fields, "prompt_token_ids": token_ids}
        side = self._sides.get(self._name(fields) or "") if is_text else None
        return PooledPrompt.of(super().process_fields(fields), pair, side)

    def process_chat(self, messages: Any, **options: Any) -> ProcessedPrompt:
        """Prepare a conversation, as `InputProcessor.process_chat`.

        Raises:
            PromptError: also for a model that reads texts alone.
        """
        if self._sides:
            raise PromptError("this model reads queries and documents (ColBERT), no conversations; give a text")
        return super().process_chat(messages, **options)

    def encode_text(self, text: str, fields: Mapping[str, Any]) -> list[int]:
        """Return the tokens of a prompt's text, behind what the checkpoint puts before it; errors as of the base."""
        return super().encode_text(self._prefix(self._name(fields)) + text, fields)

    def _encode_pair(self, fields: Mapping[str, Any]) -> tuple[list[int], TextPair]:
        text, other = fields.get("prompt"), fields["text_pair"]
        if not isinstance(text, str):
            raise PromptError(f"prompt must be a string, got {text!r:.100}")
        if fields.get("multi_modal_data"):
            raise PromptError("text_pair joins two texts; a prompt with items has one text, with both in a template")
        if self._sides:
            raise PromptError(
                "text_pair joins two texts, and this model reads each alone (ColBERT); score compares them"
            )
        for one in (text, other):
            self.text_limit.check(str(one))
            if not is_unicode(str(one)):
                raise PromptError("text_pair: one of the texts is not valid Unicode; decode it as it was written")
        token_ids, pair = encode_pair(self.text_tokenizer, text, other)
        return self.known(token_ids), pair

    def _name(self, fields: Mapping[str, Any]) -> Any:
        """Return the name under which the checkpoint puts a text before a prompt's: its own, else the default one."""
        name = fields.get("prompt_name")
        return self._default_name if name is None else name

    def _prefix(self, name: Any) -> str:
        """Return the text that the checkpoint puts before texts under a name; None for no name.

        Raises:
            PromptError: there is no such name, or the model must know one.
        """
        if self._sides and name not in self._sides:
            raise PromptError(
                "this model reads queries and documents differently (ColBERT); name the text with prompt_name="
                f"{' or '.join(map(repr, self._sides))}",
                param="prompt_name",
            )
        if name is not None and name not in self._named:
            known = ", ".join(map(repr, self._named)) or "none"
            raise PromptError(f"prompt_name {name!r:.100}: the checkpoint states no such prompt; it has {known}")
        return "" if name is None else self._named[name]

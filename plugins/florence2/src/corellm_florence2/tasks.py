"""What the processor makes of a prompt that names a task, on tokens: `<OD>` becomes a question.

Special tokens stay what they are, and text stays text, though the prompt around them is tokenized anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from corellm.errors import PromptError

_FIRST_MARK = 0xF0000
"""Private-use characters from here on stand for special tokens while the prompt is text."""


class Tasks:
    """The tasks of one checkpoint.

    Args:
        processor: its `Florence2Processor`.
    """

    def __init__(self, processor: Any) -> None:
        self._processor, self._tokenizer = processor, processor.tokenizer
        self._names = (*processor.task_prompts_without_inputs, *processor.task_prompts_with_input)
        self._special = frozenset(self._tokenizer.added_tokens_decoder)

    def written_out(self, token_ids: Sequence[int]) -> list[int]:
        """Return a prompt's tokens with its task, if it names one, written out.

        Raises:
            PromptError: the task stands alone, and there is more.
        """
        special = [token for token in token_ids if token in self._special]
        text = self._text(token_ids)
        if not any(name in text for name in self._names):
            return list(token_ids)
        try:
            (written,) = self._processor._construct_prompts(text)
        except ValueError as error:
            raise PromptError(f"{error} Send it alone, or take a task that has an input") from error
        return list(self._tokens(written, special))

    def _text(self, token_ids: Sequence[int]) -> str:
        """Return tokens as text, with a mark for each special token."""
        text, count = "", 0
        for is_special, run in groupby(token_ids, self._special.__contains__):
            tokens = list(run)
            if is_special:
                text += "".join(chr(_FIRST_MARK + count + i) for i in range(len(tokens)))
                count += len(tokens)
            else:
                decoded = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
                text += re.sub(f"[{chr(_FIRST_MARK)}-{chr(0xFFFFD)}]", "", decoded)
        return text

    def _tokens(self, text: str, special: Sequence[int]) -> Iterator[int]:
        """Yield the tokens of a text with marks."""
        for part in re.split(f"([{chr(_FIRST_MARK)}-{chr(0xFFFFD)}])", text):
            if part and ord(part[0]) >= _FIRST_MARK:
                yield special[ord(part) - _FIRST_MARK]
            elif part:
                for piece in self._literals.sub("\\g<0>\0", part).split("\0"):
                    yield from self._tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]

    @cached_property
    def _literals(self) -> re.Pattern[str]:
        """The first character of what would become a special token."""
        named = sorted(token.content for token in self._tokenizer.added_tokens_decoder.values())
        return re.compile("|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in named))

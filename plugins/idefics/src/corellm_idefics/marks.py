"""What the processor writes around images and texts, put into a prompt's tokens: BOS, marks, and no spaces at borders.

Transformers' processor takes a list of texts and images. It strips texts of spaces, and puts a mark,
`<fake_token_around_image>`, on each side of an image; images side by side share the one between them. Knows tokens and
the tokenizer, no images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

IMAGE, MARK, END_OF_TURN = "<image>", "<fake_token_around_image>", "<end_of_utterance>"
_SPACE = "▁"
"""That tokens of SentencePiece have for a space."""
_WORD = re.compile(r"^[^\s<]*")
"""Beginning of a text that no special token's name is part of."""


class Marks:
    """Makes prompts what the processor would make of them.

    Args:
        tokenizer: a transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.image_token_id, self._mark = tokenizer.convert_tokens_to_ids([IMAGE, MARK])
        self._bos: int = tokenizer.bos_token_id

    def put(self, token_ids: Sequence[int]) -> list[int]:
        """Return a prompt with BOS, marks around images, and texts without spaces before and behind them.

        What the processor wrote stays as it is.
        """
        rest = list(token_ids[token_ids[:1] == [self._bos] :])
        out, text = [self._bos], list[int]()
        for token in self._marked(rest):
            if token in (self._mark, self.image_token_id):
                out += [*self._stripped(text), token]
                text = []
            else:
                text.append(token)
        return out + self._stripped(text)

    def _marked(self, token_ids: list[int]) -> Iterator[int]:
        """Yield the tokens, with marks around images that do not have both."""
        places = zip([self._bos, *token_ids], token_ids, [*token_ids[1:], self._bos], strict=False)
        for before, token, behind in places:
            lacks = token == self.image_token_id and not before == behind == self._mark
            if lacks and before != self.image_token_id:
                yield self._mark
            yield token
            if lacks:
                yield self._mark

    def _stripped(self, text: list[int]) -> list[int]:
        """Return the tokens of a text, which may have special ones inside, without spaces at both ends."""
        inside = [i for i, token in enumerate(text) if token in self._added]
        begin, end = (inside[0], inside[-1] + 1) if inside else (len(text), len(text))
        begun = self._without_first_spaces(text[:begin])
        if not inside:
            return self._without_last_spaces(begun)
        return begun + text[begin:end] + self._without_last_spaces(text[end:])

    def _without_first_spaces(self, tokens: list[int]) -> list[int]:
        """Return the tokens of a text behind a special token without its first spaces.

        As the text's first word may have another token without a space, it is tokenized anew: alone, or with all that
        follows. A text that the tokenizer would not write so stays as it is.
        """
        shown = self._shown(tokens)
        if not shown.startswith(" "):
            return tokens
        for text in (shown, shown[1:]):  # the tokenizer may have begun it with a space of its own
            stripped = text.lstrip(" ")
            for part in (*_WORD.findall(stripped), stripped):
                own = self._encoded(text[: len(text) - len(stripped)] + part)
                if tokens[: len(own)] == own:
                    return self._encoded(part) + tokens[len(own) :]
        return tokens

    def _without_last_spaces(self, tokens: list[int]) -> list[int]:
        """Return the tokens of a text behind a special token without its last spaces."""
        pieces = self._tokenizer.convert_ids_to_tokens(tokens)
        while pieces and not pieces[-1].strip(_SPACE):
            pieces.pop()
        kept = tokens[: len(pieces)]
        if not pieces or not pieces[-1].endswith(_SPACE):
            return kept
        shown = self._shown(kept)
        genuine = next((text for text in (shown, shown.removeprefix(" ")) if self._encoded(text) == kept), None)
        return kept if genuine is None else self._encoded(genuine.rstrip(" "))

    def _shown(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens behind a special token are of."""
        shown: str = self._tokenizer.decode([self._mark, *tokens], clean_up_tokenization_spaces=False)
        return shown.removeprefix(MARK)

    def _encoded(self, text: str) -> list[int]:
        """Return the tokens of a text behind a special token."""
        ids: list[int] = self._tokenizer(MARK + text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids[1:]

    @cached_property
    def _added(self) -> frozenset[int]:
        """Tokens beside the tokenizer's model; texts are tokenized apart on both sides of them."""
        return frozenset(self._tokenizer.added_tokens_decoder)

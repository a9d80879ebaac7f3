"""Marks around images, `<fake_token_around_image>`: put into a prompt's tokens as the processor puts them into text.

Images side by side share the mark between them, and text right behind a mark begins with a space. Knows tokens and the
tokenizer, no images.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

_WORD = re.compile(r"^\S*")
_GLUED = re.compile(r"[^\s<]")
"""Beginning of a text that the processor parts from a mark by a space."""


class Marks:
    """Puts marks into prompts.

    Args:
        tokenizer: a transformers tokenizer.
        image: the text of the token that stands for an image.
        mark: the text of the token around images.
    """

    def __init__(self, tokenizer: Any, image: str, mark: str) -> None:
        self._tokenizer, self.image, self._mark = tokenizer, image, mark
        self.image_token_id, self.mark_token_id = tokenizer.convert_tokens_to_ids([image, mark])

    def put(self, token_ids: Sequence[int]) -> list[int]:
        """Return a prompt with a mark on each side of each image, and the spaces behind marks.

        A prompt that has them stays as it is, but for a mark that two images share: there the processor, too, would
        leave two of three.
        """
        if self.image_token_id not in token_ids and self.mark_token_id not in token_ids:
            return list(token_ids)
        marked = self._around_images(token_ids)
        out: list[int] = []
        done = 0
        for start in (i + 1 for i, token in enumerate(marked) if token == self.mark_token_id):
            end = next((i for i in range(start, len(marked)) if marked[i] in self._added), len(marked))
            out += marked[done:start] + self._parted(marked[start:end], marked[end : end + 1])
            done = end
        return out + marked[done:]

    def between(self, count: int, per_crop: int) -> list[int]:
        """Return the tokens of `count` embeddings of one image, with a mark between one crop's and the next's."""
        tokens: list[int] = []
        for start in range(0, count, per_crop):
            tokens += [self.mark_token_id] * (start > 0) + [self.image_token_id] * min(per_crop, count - start)
        return tokens

    def _around_images(self, token_ids: Sequence[int]) -> list[int]:
        """Put marks around images; of two in a row one is left, also of those that were there."""
        out: list[int] = []
        is_second = False  # whether a mark here is the second of two
        for token in token_ids:
            for part in (self.mark_token_id, token, self.mark_token_id) if token == self.image_token_id else (token,):
                if part == self.mark_token_id and is_second:
                    is_second = False
                    continue
                is_second = part == self.mark_token_id
                out.append(part)
        return out

    def _parted(self, tokens: list[int], added: Sequence[int]) -> list[int]:
        """Return the tokens of a text behind a mark as those of the same text with the processor's space.

        Args:
            tokens: of the text up to the next added token.
            added: that token; empty at the end of a prompt.
        """
        if not tokens:
            following = "".join(self._tokenizer.convert_ids_to_tokens(list(added)))
            return self._encoded(" ") if _GLUED.match(following) else []
        shown = self._tokenizer.decode([self.mark_token_id, *tokens], clean_up_tokenization_spaces=False)
        shown = shown.removeprefix(self._mark)
        for text in (shown.removeprefix(" "), shown):  # the tokenizer may have begun it with a space of its own
            for part in (text, *_WORD.findall(text)):
                own = self._encoded(part)
                if tokens[: len(own)] == own:
                    return self._encoded(" " + part) + tokens[len(own) :] if _GLUED.match(text) else tokens
        # not the tokenizer's own for this text, such as those of a special token's name that a user wrote
        return self._encoded(" ") + tokens if _GLUED.match(shown) else tokens

    def _encoded(self, text: str) -> list[int]:
        """Return the tokens of a text behind a mark."""
        ids: list[int] = self._tokenizer(self._mark + text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids[1:]

    @cached_property
    def _added(self) -> frozenset[int]:
        """Tokens beside the tokenizer's model; texts are tokenized apart on both sides of them."""
        return frozenset(self._tokenizer.added_tokens_decoder)

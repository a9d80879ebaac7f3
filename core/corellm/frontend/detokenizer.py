"""Turns a growing list of tokens into text that never has to be taken back.

Knows one request's tokens and text; knows neither the scheduler nor why a request ends.

Tokens of most vocabularies are bytes, each by itself (byte-level ones as of GPT-2, Llama 3 and Qwen, and those with
byte fallback as of Llama 2 and Gemma): the text is theirs, decoded as they come. Those of other vocabularies are
decoded together with some before them.

Not `tokenizers.DecodeStream`, which takes 1.5 microseconds per token where this takes 2 (7 with tokens before it): it
raises ("Invalid prefix encountered") when byte tokens turn out not to be UTF-8 (425 of 500 random sequences on a
byte-fallback vocabulary), has no way to get the text that it holds back at the end, and does not know slow tokenizers.
"""

from __future__ import annotations

import codecs
import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

_REPLACEMENT = "\ufffd"
_CONTEXT = 8
"""Tokens kept before new ones. Six are enough: three bytes to synchronize with UTF-8, three of a partial character."""
_TAIL = 16
"""Tokens after which the tail is cut back to the context."""


class IncrementalDetokenizer:
    """The text of a sequence, token by token.

    The returned texts, joined, are what `tokenizer.decode` makes of prompt and output together (without its clean-up
    of spaces, which edits text that was returned long ago), less the prompt's text. A character whose bytes are not
    all there yet is held back. Each token costs at most the decoding of a tail of 16 tokens, however long the output.

    Bytes that are not UTF-8 give U+FFFD as in `bytes.decode(errors="replace")`. There is one difference to
    `tokenizer.decode`: fast tokenizers with byte-fallback tokens (`<0x0A>`) decode a whole run of them to U+FFFD if
    one character in it is broken, so no text of a run is certain before its end; here, complete characters stay.
    Otherwise a newline as a stop string would be seen a token late, and a text cut off in its last character would
    lose many.

    Args:
        tokenizer: a fast or slow `transformers` tokenizer.
        prompt_token_ids: the prompt; decides, for instance, whether the first word has a space before it. If it ends
            within a character, that character belongs to the output.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: keep the space that some tokenizers put between two special tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._joins_special_tokens = not (skip_special_tokens or spaces_between_special_tokens)
        self._vocabulary = _vocabulary(tokenizer)
        self._backend: Any = None
        if self._vocabulary.wrapper_adds_nothing:
            self._backend = tokenizer.backend_tokenizer
        self._spelling = None if self._joins_special_tokens else self._vocabulary.spelling
        self.is_at_start = True
        """Whether there is no text yet, neither of the prompt nor of the output."""
        self._tail: list[int] = []
        self._num_returned = 0
        """Number of characters of the tail's text that were returned."""
        self._half = ""
        """U+FFFD if the tail's text ends with one: perhaps the beginning of a character."""
        self._run: list[int] = []
        """Byte tokens since the last other token; they are decoded by `_utf8`, not in the tail."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

        context: list[int] = []
        for token_id in reversed(prompt_token_ids):
            if not self._is_silent(token_id):
                context.append(token_id)
                if len(context) == _CONTEXT:
                    break
        for token_id in reversed(context):
            self.append(token_id)

    def append(self, token_id: int) -> str:
        """Take in the next token; returns the text that is certain now, often one token's, possibly none."""
        if self._is_silent(token_id):
            return ""
        if self._spelling is not None:
            text = self._utf8.decode(self._spelling[token_id])
            if not self.is_at_start or not self._spelling[token_id]:
                return text
            self.is_at_start = False
            return text.removeprefix(" ") if self._spelling.strips_first_space else text
        self.is_at_start = False
        byte = self._vocabulary.bytes.get(token_id)
        if byte is not None:
            half, self._half = self._half, ""
            self._run.append(token_id)
            return half + self._utf8.decode(byte)
        ended = self._end_run() if self._run else ""
        follows_special = self._joins_special_tokens and self._tail and self._tail[-1] in self._vocabulary.special
        new = self._grow([token_id])
        if follows_special and token_id in self._vocabulary.special:
            new = new.removeprefix(" ")
        return ended + new

    def extend(self, token_ids: Sequence[int]) -> str:
        """Take in several tokens; returns what `append` returns for each, joined, and mostly decodes them at once."""
        alone = self._spelling is not None or self._joins_special_tokens or self._run
        if alone or not self._vocabulary.bytes.keys().isdisjoint(token_ids):
            return "".join(map(self.append, token_ids))
        heard = [token_id for token_id in token_ids if not self._is_silent(token_id)]
        if not heard:
            return ""
        self.is_at_start = False
        return self._grow(heard)

    def _grow(self, token_ids: list[int]) -> str:
        """Add tokens to the tail; returns the text that they make certain."""
        self._tail += token_ids
        text = self._decode(self._tail)
        self._half = _REPLACEMENT if text.endswith(_REPLACEMENT) else ""
        certain = len(text) - len(self._half)
        new = text[self._num_returned : certain]
        self._num_returned = max(self._num_returned, certain)
        if len(self._tail) > _TAIL:
            self._start_tail(self._tail[-_CONTEXT:], held=len(self._half))
        return new

    def preview(self, token_id: int) -> str:
        """The text that `append` would return for a token, which is not appended; for a special token its own text."""
        if self._is_silent(token_id):
            return self.left_out_text(token_id)
        other = copy.copy(self)
        other._tail, other._run = list(self._tail), list(self._run)
        other._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        other._utf8.setstate(self._utf8.getstate())
        return other.append(token_id)

    def left_out_text(self, token_id: int) -> str:
        """The text of a special token that `skip_special_tokens` leaves out; nothing for every other token."""
        if self._skip_special_tokens and token_id in self._vocabulary.skipped:
            return self._vocabulary.special[token_id]
        return ""

    @property
    def left_out_texts(self) -> frozenset[str]:
        """The texts of all special tokens that are left out."""
        return self._vocabulary.skipped_texts if self._skip_special_tokens else frozenset()

    @property
    def holds_back(self) -> bool:
        """Whether a partial character may be held back. Some tokenizers have no text for one."""
        if self._half or self._utf8.getstate()[0]:
            return True
        return self._spelling is None and not (self._run or self._decode(self._tail[-1:]))

    def finish(self) -> str:
        """Return the text still held back, a partial character as U+FFFD. No token may be appended after it."""
        return self._utf8.decode(b"", final=True) + self._half

    def _is_silent(self, token_id: int) -> bool:
        vocabulary = self._vocabulary
        if self._skip_special_tokens and token_id in vocabulary.skipped:
            return True
        if token_id < vocabulary.size:
            return False
        # Logits are often wider than the vocabulary, padded to a round number; the padding has no text.
        return self._tokenizer.convert_ids_to_tokens(token_id) is None

    def _end_run(self) -> str:
        """End a run of byte tokens: its last one is enough context for the next token."""
        self._start_tail(self._run[-1:], held=0)
        self._run.clear()
        return self._utf8.decode(b"", final=True)

    def _start_tail(self, token_ids: list[int], *, held: int) -> None:
        self._tail = token_ids
        self._num_returned = len(self._decode(token_ids)) - held

    def _decode(self, token_ids: list[int]) -> str:
        text: str
        if self._backend is not None:
            text = self._backend.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
        else:
            text = self._tokenizer.decode(
                token_ids, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=False
            )
        return text


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The facts about a tokenizer's tokens that detokenization needs, computed once per tokenizer."""

    size: int
    special: dict[int, str]
    """Special tokens with their text."""
    skipped: frozenset[int]
    """Special tokens that have no text with `skip_special_tokens`. They must not enter a tail: a tail that gains
    no text would have to grow."""
    skipped_texts: frozenset[str]
    bytes: dict[int, bytes]
    """Byte-fallback tokens."""
    spelling: _Spelling | None
    """All tokens' bytes, where each has its own."""
    wrapper_adds_nothing: bool
    """Whether transformers' wrapper only passes ids on to the tokenizer behind it, which takes half the time alone."""


class _Spelling(dict[int, bytes]):
    """The bytes of tokens, where a token's do not depend on others; each found when it is first asked for.

    Args:
        backend: the tokenizer behind transformers' wrapper.
        spell: returns the bytes of a token.
        strips_first_space: whether a text loses one space at its start.
    """

    def __init__(self, backend: Any, spell: Callable[[str], bytes], *, strips_first_space: bool) -> None:
        self._backend, self._spell, self.strips_first_space = backend, spell, strips_first_space

    def __missing__(self, token_id: int) -> bytes:
        found = self[token_id] = self._spell(self._backend.id_to_token(token_id) or "")
        return found


def _spelling(tokenizer: Any) -> _Spelling | None:
    """Return a tokenizer's spelling, as its decoder states it; None for decoders that look at several tokens."""
    if not _wrapper_adds_nothing(tokenizer):
        return None
    backend: Any = tokenizer.backend_tokenizer
    try:
        stated = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    except Exception:  # a decoder written in Python, which states nothing
        return None
    if stated.get("type") == "ByteLevel":
        return _Spelling(backend, _spelt_in_letters, strips_first_space=False)
    steps = stated.get("decoders", [])
    if steps[:3] == _BYTE_FALLBACK and steps[3:] in ([], [_STRIP]):
        return _Spelling(backend, _spelt_in_words, strips_first_space=steps[3:] == [_STRIP])
    return None


def bytes_of_tokens(tokenizer: Any, count: int) -> list[bytes]:
    """Return what each of the first token ids adds to a text that goes on, as UTF-8.

    Empty for special tokens, ids that are not in the vocabulary, and pieces of a character of which the tokenizer does
    not say the bytes.
    """
    vocabulary = _vocabulary(tokenizer)
    spell = vocabulary.bytes.get if vocabulary.spelling is None else vocabulary.spelling.__getitem__
    found = [b"" if token_id in vocabulary.special else spell(token_id) for token_id in range(count)]
    if None not in found:
        return [spelt or b"" for spelt in found]
    probe = list(tokenizer.encode("a", add_special_tokens=False))
    before = tokenizer.decode(probe, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    for token_id in set(tokenizer.get_vocab().values()):
        if token_id < count and found[token_id] is None:
            both = tokenizer.decode([*probe, token_id], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            is_text = both.startswith(before) and _REPLACEMENT not in both
            found[token_id] = both[len(before) :].encode() if is_text else b""
    return [spelt or b"" for spelt in found]


_BYTE_FALLBACK = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
]  # fmt: skip
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
"""How decoders of vocabularies with byte fallback are stated; the last step is of those whose encoders add a space."""


_BYTE_NAME = re.compile("<0x([0-9A-Fa-f]{2})>")


def _spelt_in_words(token: str) -> bytes:
    byte = _BYTE_NAME.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte is not None else token.replace("\u2581", " ").encode()


def _spelt_in_letters(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_LETTER[letter] for letter in token)
    except KeyError:  # an added token, which is spelt as it is
        return token.encode()


def _letters_of_bytes() -> dict[str, int]:
    """Return how byte-level vocabularies spell bytes: printable ones of Latin-1 as themselves, others from U+0100 on.

    Source: the byte encoder of GPT-2 (Radford et al., 2019).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_LETTER = _letters_of_bytes()

_vocabularies: WeakKeyDictionary[Any, _Vocabulary] = WeakKeyDictionary()


def _vocabulary(tokenizer: Any) -> _Vocabulary:
    known = _vocabularies.get(tokenizer)
    if known is None or known.size != len(tokenizer):
        named = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        special = {
            token_id: tokenizer.convert_ids_to_tokens(token_id) or ""
            for token_id in sorted(named.union(tokenizer.all_special_ids))
        }
        skipped = frozenset(
            token_id
            for token_id in special
            if not tokenizer.decode([token_id], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
        known = _Vocabulary(
            len(tokenizer),
            special,
            skipped,
            frozenset(special[token_id] for token_id in skipped) - {""},
            _byte_tokens(tokenizer),
            _spelling(tokenizer),
            _wrapper_adds_nothing(tokenizer),
        )
        _vocabularies[tokenizer] = known
    return known


def _wrapper_adds_nothing(tokenizer: Any) -> bool:
    from transformers import PreTrainedTokenizerFast

    return all(
        getattr(type(tokenizer), step, None) is getattr(PreTrainedTokenizerFast, step)
        for step in ("decode", "_decode", "backend_tokenizer")
    )


def _byte_tokens(tokenizer: Any) -> dict[int, bytes]:
    names = [f"<0x{value:02X}>" for value in range(256)]
    found: dict[int, bytes] = {}
    for value, (name, token_id) in enumerate(zip(names, tokenizer.convert_tokens_to_ids(names), strict=True)):
        if token_id is not None and tokenizer.convert_ids_to_tokens(token_id) == name:
            found[token_id] = bytes([value])
    # In a vocabulary without byte fallback such a name is ordinary text, which decodes to itself.
    probe = next((token_id for token_id, byte in found.items() if byte == b"A"), None)
    if probe is None:
        return {}
    text = tokenizer.decode([probe], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return found if text == "A" else {}

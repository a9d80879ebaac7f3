"""The tokenizer of a Qwen-VL checkpoint, made from `qwen.tiktoken`.

The file lists byte strings by rank; text is cut by a pattern, and in each piece the adjacent pair whose joint string
has the lowest rank is merged until none is left. As merge rules, that is every split of every string into two listed
ones, in the order of the joint string's rank, which the `tokenizers` library applies.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError

FILE_NAME = "qwen.tiktoken"
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE_START, IMAGE_END, IMAGE_PAD = "<img>", "</img>", "<imgpad>"

_CONTROL_TOKENS = (END_OF_TEXT, IM_START, IM_END, *(f"<|extra_{i}|>" for i in range(205)))
_GROUNDING_TOKENS = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>")
_IMAGE_TOKENS = (IMAGE_START, IMAGE_END, IMAGE_PAD)
NUM_ADDED_TOKENS = len(_CONTROL_TOKENS) + len(_GROUNDING_TOKENS) + len(_IMAGE_TOKENS)
"""Number of added tokens: they follow the ranks, in this order."""

_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The published pattern, unchanged: tokens depend on it."""


def load_tokenizer(path: Path) -> Any:
    """Make the tokenizer; about two seconds for the published 151,643 ranks.

    `<ref>`, `<box>` and `<quad>` are tokens of their own but not special ones: the model says with them where something
    is, so they stay in its output text.

    Args:
        path: the checkpoint's directory.

    Returns:
        A `PreTrainedTokenizerFast`.

    Raises:
        CheckpointError: the file is absent or broken.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary, merges = _merge_rules(_read_ranks(path / FILE_NAME))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for tokens, special in ((_CONTROL_TOKENS, True), (_GROUNDING_TOKENS, False), (_IMAGE_TOKENS, True)):
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=special) for token in tokens])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _read_ranks(file: Path) -> dict[bytes, int]:
    """Return `{byte string: rank}`, by rank from 0.

    Raises:
        CheckpointError: the file cannot be read, or a line is wrong.
    """
    ranks: dict[bytes, int] = {}
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise CheckpointError(f"{file}: the tokenizer's ranks cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, start=1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise CheckpointError(
                f"{file}, line {number}: not a base64 string and a rank; download the file in full (a pointer of "
                f"git-lfs is not the file)"
            ) from error
    if list(ranks.values()) != list(range(len(lines))) or not all(bytes([byte]) in ranks for byte in range(256)):
        raise CheckpointError(f"{file}: ranks do not count up from 0, or some byte has none; the file is incomplete")
    return ranks


def _merge_rules(ranks: dict[bytes, int]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary and merges of a byte-level BPE, whose strings have a printable character per byte."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table = bytes_to_unicode()
    strings = {token: token.decode("latin-1").translate(table) for token in ranks}
    merges: list[tuple[str, str]] = []
    for token in ranks:
        splits = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [(left, right) for left, right in splits if left in ranks and right in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(strings[left], strings[right]) for left, right in known]
    return {strings[token]: rank for token, rank in ranks.items()}, merges

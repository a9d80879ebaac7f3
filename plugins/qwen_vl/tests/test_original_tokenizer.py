"""The original Qwen-VL's tokenizer gives what merging by rank gives, for any text, and is made quickly."""

from __future__ import annotations

import base64
import random
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corellm.errors import CheckpointError
from corellm_qwen_vl.original.reference import SPECIALS, PlainTokenizer
from corellm_qwen_vl.original.tiny import make_tiny_checkpoint
from corellm_qwen_vl.original.tokenizer import FILE_NAME, load_tokenizer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, PlainTokenizer]:
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("qwen"))
    return load_tokenizer(path), PlainTokenizer(path)


# Libraries know different versions of Unicode: characters that are not assigned may be letters to one of them.
any_text = st.text(st.characters(codec="utf-8", exclude_characters="\u0338", exclude_categories=["Cn"]), max_size=60)
common = st.lists(
    st.sampled_from(["What", " shape", " is", "'s", "'LL", " ", "\n", "\r\n", "\t", "12", "图", "!", "…"]), max_size=20
)


@given(parts=st.lists(st.one_of(any_text, common.map("".join), st.sampled_from(SPECIALS)), max_size=5))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text(pair: tuple[Any, PlainTokenizer], parts: list[str]) -> None:
    """Text of any script, spaces and line ends of all kinds, special tokens in between."""
    tokenizer, reference = pair
    text = "".join(parts)
    ids = tokenizer(text)["input_ids"]
    assert ids == reference.encode(text)
    assert tokenizer.decode(ids) == reference.decode(ids)


def test_special_tokens(pair: tuple[Any, PlainTokenizer]) -> None:
    """Numbered as published, after the ranks; boxes stay in the text that users see, control tokens do not."""
    tokenizer, reference = pair
    assert tokenizer.convert_tokens_to_ids(SPECIALS) == list(range(len(reference.ranks), len(tokenizer)))
    assert tokenizer.bos_token is None
    assert tokenizer.eos_token == tokenizer.pad_token == "<|endoftext|>"
    text = "<|im_start|><ref>a cat</ref><box>(1,2),(3,4)</box><img></img><|im_end|>"
    visible = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
    assert visible == "<ref>a cat</ref><box>(1,2),(3,4)</box>"


def written(path: Path) -> list[bytes]:
    """Write 151,643 ranks, each made of two before it as a real vocabulary's are; returns the byte strings."""
    random.seed(0)
    tokens = [bytes([byte]) for byte in range(256)]
    known = set(tokens)
    while len(tokens) < 151_643:
        first, second = (random.randrange(min(len(tokens), most)) for most in (256 + len(tokens) // 8, 2000))
        token = tokens[first] + tokens[second]
        if token not in known and len(token) < 12:
            known.add(token)
            tokens.append(token)
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    (path / FILE_NAME).write_bytes(b"".join(lines))
    return tokens


@pytest.mark.full
def test_published_size_takes_seconds(tmp_path: Path) -> None:
    """About two on an idle core."""
    written(tmp_path)
    began = time.process_time()
    load_tokenizer(tmp_path)
    assert time.process_time() - began < 15


def test_published_size(tmp_path: Path) -> None:
    """Equal to merging by rank."""
    tokens = written(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<img>", "</img>", "<imgpad>"]) == [
        151643, 151857, 151858, 151859,
    ]  # fmt: skip
    reference = PlainTokenizer(tmp_path)
    for _ in range(300):
        decoded = b"".join(random.choices(tokens, k=5)).decode("utf-8", errors="ignore")
        text = "".join(character for character in decoded if unicodedata.category(character) != "Cn")
        assert tokenizer(text)["input_ids"] == reference.encode(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n", "line 1: .* git-lfs"),
        (b"IQ== 0\n!!!! 1\n", "line 2"),
        (b"IQ== 0\nIg== 2\n", "incomplete"),
        (b"IQ== 0\nIg== 1\n", "incomplete"),
        (None, "cannot be read"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes | None, words: str) -> None:
    """One clear line, naming the file and where it breaks."""
    if content is not None:
        (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        load_tokenizer(tmp_path)

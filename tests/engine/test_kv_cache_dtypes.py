"""A quantized KV cache that a backend does not have is refused, with what it has and which backends cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

from corellm import LLM
from corellm.errors import ConfigError


def test_the_error_says_what_there_is_and_why_no_more(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError,
        match=r"'fp8': the attention backend '(compiled|cpu)' has no such cache on cpu \(of such: .*triton \(",
    ):
        LLM(str(tiny_llava), kv_cache_dtype="fp8", device="cpu")
    with pytest.raises(ConfigError, match=r"'int8': .* 'cpu' has no such cache on cpu \(of such: none\); leave it out"):
        LLM(str(tiny_llava), kv_cache_dtype="int8", device="cpu", attention_backend="cpu")
    with pytest.raises(ConfigError, match=r"compiled \("):
        LLM(str(tiny_llava), kv_cache_dtype="int8", device="cpu", dtype="float16")

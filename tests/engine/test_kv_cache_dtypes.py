"""A quantized KV cache that a backend does not have is refused, with what it has and which backends cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corellm import LLM
from corellm.errors import ConfigError

HAS = r"has no such cache on cpu \(quantized ones that it has:"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"kv_cache_dtype": "fp8"}, rf"'fp8': the attention backend '(compiled|cpu)' {HAS} .*triton \("),
        ({"kv_cache_dtype": "int8", "attention_backend": "cpu"}, rf"'int8': .* 'cpu' {HAS} none\); leave it out"),
        ({"kv_cache_dtype": "int8", "dtype": "float16"}, r"compiled \("),
    ],
    ids=str,
)
def test_the_error_says_what_there_is_and_why_no_more(tiny_llava: Path, wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LLM(str(tiny_llava), device="cpu", **wanted)

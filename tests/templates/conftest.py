"""A tokenizer with special tokens, and a renderer for all tests of templates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models

from corellm.templates.renderer import TemplateRenderer


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Knows no text: only its special tokens and how transformers renders a template count here."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"x": 0})),
        bos_token="<|begin|>", eos_token="</s>", pad_token="<pad>", extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip


@pytest.fixture(scope="session")
def templates() -> Iterator[TemplateRenderer]:
    renderer = TemplateRenderer()
    yield renderer
    renderer.close()

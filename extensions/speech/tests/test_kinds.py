"""The page's table of kinds: how each reads long audio, and whether it tells times, as its adapter says."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm.hookspecs import ModelContext, SpeechForm
from corellm_qwen_audio import Qwen2Audio
from corellm_qwen_audio.tiny import make_tiny_checkpoint as make_qwen_audio
from corellm_transformers import TransformersModel
from corellm_transformers.processors import read_processor
from corellm_transformers.tiny import make_tiny_checkpoint

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operate" / "speech.md"
ROWS = dict(re.findall(r"^\| [^|]+ \| `(\w+)` \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
WHOLE, PIECES, WINDOWS = "whole", "in pieces", "window by window"


@pytest.mark.parametrize("architecture", sorted(ROWS))
def test_how_a_kind_reads_long_audio(tmp_path: Path, architecture: str) -> None:
    """Whole, in pieces, or window by window, by what its adapter says of a tiny checkpoint."""
    if architecture == "VoxtralForConditionalGeneration":
        pytest.importorskip("corellm_voxtral")
        from corellm_voxtral import Voxtral

        assert not hasattr(Voxtral, "get_speech_form")
        assert ROWS[architecture] == WHOLE
        return
    own = architecture == "Qwen2AudioForConditionalGeneration"
    make: Callable[[Path], Any] = make_qwen_audio if own else partial(make_tiny_checkpoint, architecture=architecture)
    make(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    context = ModelContext(tmp_path, config, tokenizer, torch.float32, torch.device("cpu"))
    context.make_processor = lambda: read_processor(tmp_path)
    form: SpeechForm | None = (Qwen2Audio if own else TransformersModel)(context).get_speech_form()
    if form is None:
        assert ROWS[architecture] == WHOLE
    else:
        assert ROWS[architecture] == (PIECES if form.times is None else WINDOWS)
        assert form.seconds == (2 if architecture.startswith("Whisper") else 30)

"""Towers of GGUF files whose stated sizes cannot be are refused before anything is made of them."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gguf.constants import GGMLQuantizationType as Kind

from corellm.errors import CheckpointError
from corellm_quantization.gguf import gemma3, idefics3, llava, qwen2_vl
from corellm_quantization.gguf.file import GgufFile, StoredTensor

SIZES: dict[str, Any] = {
    "embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 4, "block_count": 2, "image_size": 56,
    "patch_size": 14, "attention.layer_norm_epsilon": 1e-6, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "projector.scale_factor": 2, "n_wa_pattern": 2,
}  # fmt: skip
SHAPES = {
    "v.position_embd.weight": (16, 64), "v.blk.0.ffn_up.weight": (96, 64), "v.blk.0.ffn_gate.weight": (96, 64),
    "v.class_embd": (64,),
}  # fmt: skip


class Everything(dict[str, int]):
    """A vocabulary that has every token."""

    def __contains__(self, token: object) -> bool:
        return True

    def __missing__(self, token: str) -> int:
        return 0


@pytest.mark.parametrize(
    ("configure", "changed", "message"),
    [
        (gemma3.configure, {"image_size": 1 << 20}, "v.position_embd.weight has the shape (16, 64)"),
        (gemma3.configure, {"patch_size": 0}, "patch_size is 0, expected at least 1"),
        (gemma3.configure, {"patch_size": True}, "patch_size is True, expected int"),
        (gemma3.configure, {"attention.head_count": 0}, "head_count is 0, expected at least 1"),
        (gemma3.configure, {"attention.head_count": 5}, "5 heads do not divide"),
        (gemma3.configure, {"projector.scale_factor": 5}, "no tokens of 5 patches of 14"),
        (gemma3.configure, {"image_mean": []}, "image_mean is [], not 3 numbers"),
        (gemma3.configure, {"image_std": [0.5, 0.0, 0.5]}, "image_std is [0.5, 0.0, 0.5], not 3 numbers"),
        (idefics3.configure, {"projector.scale_factor": -2}, "scale_factor is -2, expected at least 1"),
        (idefics3.configure, {"preproc_image_size": 1 << 20}, "1048576 pixels (clip.vision.preproc_image_size)"),
        (llava.configure, {"attention.head_count": 0}, "head_count is 0, expected at least 1"),
        (qwen2_vl.configure, {"embedding_length": 0}, "embedding_length is 0, expected at least 1"),
        (qwen2_vl.configure, {"image_max_pixels": 0}, "image_max_pixels is 0, expected at least 1"),
        (qwen2_vl.configure, {"n_wa_pattern": "2"}, "n_wa_pattern is '2', expected int"),
        (qwen2_vl.configure, {"window_size": 27}, "a window of 27 pixels has no tokens of 2 patches of 14"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    configure: Callable[..., Any],
    changed: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = {
        name: shape for name, shape in SHAPES.items() if (name == "v.class_embd") <= (configure is llava.configure)
    }
    file = _file("clip.vision.", SIZES | changed, shapes)
    model = _file("qwen2vl.rope.", {"dimension_sections": [2, 3, 3, 0]}, {})
    text: Any = SimpleNamespace(
        model_type="gemma3_text", hidden_size=32, tie_word_embeddings=False, dtype="float32",
        to_dict=lambda: {"rope_parameters": {}},
    )  # fmt: skip
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.from_pretrained", lambda *given, **more: None)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        configure(tmp_path, text, SimpleNamespace(get_vocab=Everything), model, file)


def _file(prefix: str, stated: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> GgufFile:
    tensors = {name: StoredTensor(shape, Kind.F32, cast(mmap.mmap, b""), 0, 0) for name, shape in shapes.items()}
    return GgufFile((Path("tower.gguf"),), {f"{prefix}{key}": value for key, value in stated.items()}, tensors, [])

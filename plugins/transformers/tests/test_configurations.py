"""A checkpoint of what is no language model is refused by its configuration alone, by the generic adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_file

from corellm import LLM
from corellm.errors import CheckpointError
from corellm.tiny_checkpoints import write_json


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [("DiffusionGemmaForBlockDiffusion", "diffusion_gemma"), ("PI0ForConditionalGeneration", "pi0")],
)
def test_a_model_that_writes_no_tokens_one_by_one(tmp_path: Path, architecture: str, model_type: str) -> None:
    """One makes blocks of text out of noise, one moves a robot."""
    write_json(tmp_path, {"config.json": {"architectures": [architecture], "model_type": model_type}})
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{architecture} does not write text token by token"):
        LLM(str(tmp_path))

"""A checkpoint whose items would not reach the model is refused at load; an encoder inside a decoder is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError
from corellm_transformers.tiny import make_tiny_checkpoint


@pytest.fixture(scope="module")
def phi4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Phi-4 multimodal: the token of audio is named in the encoder's configuration, the encoder is in the decoder."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("phi4"), architecture="Phi4MultimodalForCausalLM")


@pytest.fixture
def with_audio_token(phi4: Path, tmp_path: Path) -> Callable[[int], Path]:
    """Return a function that gives the checkpoint with another token of audio in its configuration."""

    def changed(token: int) -> Path:
        for file in phi4.iterdir():
            (tmp_path / file.name).symlink_to(file)
        config = json.loads((phi4 / "config.json").read_text(encoding="utf-8"))
        config["audio_config"]["audio_token_id"] = token
        (tmp_path / "config.json").unlink()
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return tmp_path

    return changed


def test_the_model_hears_an_encoder_inside_its_decoder(phi4: Path) -> None:
    """Two tones give different outputs; the encoder does not attend as the decoder does."""
    with LLM(str(phi4), dtype="float32") as llm:
        hooks = llm.engine.input_processor.mm_processor.hooks
        text = hooks.get_placeholder_str(modality="audio", index=0)
        at = np.arange(8000, dtype=np.float32) / 16000
        tones = [np.sin(2 * np.pi * hertz * at) / 4 for hertz in (220, 1760)]
        prompts: Any = [{"prompt": f"{text}What?", "multi_modal_data": {"audio": tone}} for tone in tones]
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, logprobs=0), use_tqdm=False)
        assert outputs[0].outputs[0].logprobs != outputs[1].outputs[0].logprobs
        config = llm.engine.runner.model.config
        assert config._attn_implementation == "corellm_paged"
        assert config.audio_config._attn_implementation != "corellm_paged"


def test_a_token_outside_the_vocabulary_is_refused(with_audio_token: Callable[[int], Path]) -> None:
    """No prompt has it: the model would run as if there were no audio."""
    with pytest.raises(CheckpointError, match=r"audio_config\.audio_token_id 200011.*460 tokens"):
        LLM(str(with_audio_token(200_011)), dtype="float32")


def test_items_that_change_nothing_are_refused(with_audio_token: Callable[[int], Path]) -> None:
    """With a token of the vocabulary that is not the processor's, audio changes no embedding."""
    with pytest.raises(CheckpointError, match="audio items the same"):
        LLM(str(with_audio_token(5)), dtype="float32")


def test_a_lora_adapter_is_not_left_out(tmp_path: Path) -> None:
    """Granite Speech hears audio by it, and without it answers all the same."""
    path = make_tiny_checkpoint(tmp_path, architecture="VipLlavaForConditionalGeneration")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, "has_lora_adapter": True}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="LoRA adapter, which corellm does not apply"):
        LLM(str(path), dtype="float32")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("transformers.models.vipllava.modeling_vipllava", r"fails in the code of transformers \d.* 'not_there'"),
        ("corellm_transformers.forward", "its adapter is at fault"),
    ],
)
def test_a_model_that_transformers_cannot_run(
    module: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message blames transformers' code where that asks for what is not there, and no plugin; else the adapter."""
    path = make_tiny_checkpoint(tmp_path, architecture="VipLlavaForConditionalGeneration")
    kind = transformers.VipLlavaForConditionalGeneration
    around: dict[str, Any] = {"__name__": module, "original": kind.forward}
    exec("def forward(*args, **kwargs):\n    return original(*args, **kwargs).not_there\n", around)
    monkeypatch.setattr(kind, "forward", wraps(kind.forward)(around["forward"]))
    with pytest.raises(CheckpointError, match=words):
        LLM(str(path), dtype="float32")

"""A model that asks for more than the engine computes is refused at load, and the error says what it asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaModel

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, ContractError, PluginNotFoundError, UnsupportedModalityError
from corellm.text_models.refusals import check_architecture
from corellm_testing.tiny_text import make_tiny_checkpoint
from tests.fixtures import random_image

_GROUPED = {"intermediate_size": 96, "num_key_value_heads": 2}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    # by the class
    "BloomForCausalLM": ({}, CheckpointError, "attention be replaced"),
    "MptForCausalLM": ({}, CheckpointError, "attention be replaced"),
    "BertLMHeadModel": ({"intermediate_size": 96}, CheckpointError, "mask .*not the causal"),
    "T5ForConditionalGeneration": (
        {"d_kv": 16, "d_ff": 96},
        PluginNotFoundError,
        "T5ForConditionalGeneration: .*no processor",
    ),
    # by what layers pass to attention
    "DiffLlamaForCausalLM": (_GROUPED, CheckpointError, "DiffLlamaModel .*more than once"),
    "PhimoeForCausalLM": (
        {**_GROUPED, "sliding_window": 12, "num_local_experts": 4},
        CheckpointError,
        "mask .*not the causal",
    ),
    "NemotronForCausalLM": (_GROUPED, ContractError, "NemotronAttention .*`paged`"),
    "DogeForCausalLM": (_GROUPED, CheckpointError, "DogeModel fails"),
    # by how they keep a state
    "RwkvForCausalLM": ({"context_length": 64}, CheckpointError, "RwkvModel never attends"),
    "MiniMaxForCausalLM": (
        {**_GROUPED, "head_dim": 16, "num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"]},
        CheckpointError,
        "MiniMaxModel .*1 of 2 layers",
    ),
    "ZayaForCausalLM": (
        _GROUPED,
        CheckpointError,
        "ZayaCCAProjection.*chunks: .*one tensor",
    ),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_models_that_ask_for_more_are_refused(architecture: str, tmp_path: Path) -> None:
    """By facts of the class, of its calls of attention, of its decoder; in a line, with the reason."""
    config, error, words = REFUSED[architecture]
    make_tiny_checkpoint(tmp_path, architecture=architecture, **config)
    with pytest.raises(error, match=words) as raised:
        LLM(str(tmp_path), dtype="float32").close()
    assert "\n" not in str(raised.value)


def test_a_multimodal_model_that_no_plugin_claims_needs_a_plugin() -> None:
    """Its name may end like a text model's; so may that of a model that transformers does not have."""
    config = transformers.Phi4MultimodalConfig(architectures=["Phi4MultimodalForCausalLM"])
    with pytest.raises(PluginNotFoundError, match=r"Phi4MultimodalForCausalLM .*multimodal"):
        check_architecture(config)
    config = transformers.LlamaConfig(architectures=["MysteryForCausalLM"])
    with pytest.raises(PluginNotFoundError, match="no MysteryForCausalLM"):
        check_architecture(config)


@pytest.mark.parametrize("width", [63, 65, 400])
def test_a_decoder_of_another_width_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """With an output layer, or of less than it is given: its embeddings are 64 wide."""
    make_tiny_checkpoint(tmp_path)
    forward = LlamaModel.forward

    def other(*args: Any, **more: Any) -> Any:
        output = forward(*args, **more)
        wide = torch.nn.functional.pad(output.last_hidden_state, (0, width - 64))
        return type(output)(last_hidden_state=wide)

    monkeypatch.setattr(LlamaModel, "forward", other)
    with pytest.raises(ContractError, match=f"LlamaModel.* {width} .*64"):
        LLM(str(tmp_path), dtype="float32").close()


def test_more_than_an_embedding_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a decoder takes of token ids under a name that is not known: it would run wrong."""
    sizes = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 400}
    layers = ["sliding_attention", "full_attention"]
    make_tiny_checkpoint(tmp_path, architecture="Gemma3nForCausalLM", **_GROUPED, **sizes, layer_types=layers)
    monkeypatch.setattr("corellm.modelling.LayerInputs.of", lambda _: None)
    with pytest.raises(CheckpointError, match="Gemma3nTextModel"):
        LLM(str(tmp_path), dtype="float32").close()


def test_capped_scores_need_a_backend_that_caps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another backend would leave the scores as they are: the error says which one caps."""
    make_tiny_checkpoint(tmp_path, architecture="Gemma2ForCausalLM", head_dim=16, **_GROUPED)
    monkeypatch.setattr("corellm.attention.cpu.CpuAttention.softcaps", False)
    with pytest.raises(CheckpointError, match=r"Gemma2Model caps .*attention_backend='reference'"):
        LLM(str(tmp_path), dtype="float32", attention_backend="cpu").close()


def test_what_attention_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name; it would change the result."""
    make_tiny_checkpoint(tmp_path)
    forward = LlamaAttention.forward
    monkeypatch.setattr(LlamaAttention, "forward", lambda *args, **more: forward(*args, **more, position_bias=1.0))
    with pytest.raises(CheckpointError, match=r"LlamaModel .* position_bias"):
        LLM(str(tmp_path), dtype="float32").close()


def test_sinks_need_a_backend_that_adds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another backend would leave them out: the error says which one adds them."""
    make_tiny_checkpoint(tmp_path, architecture="GraniteSWAForCausalLM", **_GROUPED)
    monkeypatch.setattr("corellm.attention.cpu.CpuAttention.sinks", False)
    with pytest.raises(CheckpointError, match=r"GraniteSWAModel .*sinks.*attention_backend='reference'"):
        LLM(str(tmp_path), dtype="float32", attention_backend="cpu").close()


@pytest.mark.parametrize("family", ["CLIP", "Siglip", "Siglip2"])
def test_two_towers_are_refused(family: str) -> None:
    """By what they are: no decoder is missed. Their class is looked for under the names of decoders."""
    hf_config = getattr(transformers, f"{family}Config")()
    hf_config.architectures = [f"{family}ForCausalLM"]
    with pytest.raises(PluginNotFoundError, match=rf"{family}Model .*two encoders"):
        check_architecture(hf_config)


def test_media_are_refused(tmp_path: Path) -> None:
    """In a prompt and in a conversation; the next request has output."""
    image = random_image(30, 20, 0)
    prompt = {"prompt": "What?", "multi_modal_data": {"image": image}}
    message = {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "What?"}]}
    make_tiny_checkpoint(tmp_path)
    with LLM(str(tmp_path), dtype="float32") as llm:
        with pytest.raises(UnsupportedModalityError, match="no image"):
            llm.generate([prompt], use_tqdm=False)
        with pytest.raises(UnsupportedModalityError, match="no image"):
            llm.chat([message], use_tqdm=False)
        (output,) = llm.chat([{"role": "user", "content": "What?"}], SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.prompt == "USER: What?\nASSISTANT:"
    assert output.outputs[0].token_ids


def test_a_type_of_model_that_transformers_does_not_have_needs_a_plugin(tmp_path: Path) -> None:
    """Its plugin may not be installed: the name alone says that."""
    make_tiny_checkpoint(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    changes = {"model_type": "mystery", "architectures": ["MysteryForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(stated | changes))
    with pytest.raises(PluginNotFoundError, match="MysteryForCausalLM"):
        LLM(tmp_path, dtype="float32")

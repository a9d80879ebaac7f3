"""What an adapter may not ask for is refused before its request runs, by the name of the module or field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from corellm import LLM, LoRARequest, SamplingParams
from corellm.config import ModelConfig
from corellm.errors import ConfigError, InvalidParameterError, PromptError
from corellm.plugin.extensions import load_extensions
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.lora.tests.adapters import save_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
TOKENS = "base_model.model.model.embed_tokens.token_adapter"
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("llama"), intermediate_size=96)


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    """Its model of transformers."""
    return transformers.LlamaForCausalLM.from_pretrained(path)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    """The model, for adapters of rank 8."""
    with LLM(str(path), max_model_len=64, enable_lora=True, max_lora_rank=8) as loaded:
        yield loaded


@pytest.fixture
def adapter(reference: Any, tmp_path: Path) -> LoRARequest:
    """An adapter that can be served until a test changes its files."""
    return save_adapter(tmp_path / "adapter", reference, 0, r=4, target_modules=["q_proj", "down_proj"])


def stating(**fields: Any) -> Change:
    """Write fields into the configuration."""

    def change(folder: Path) -> None:
        stated = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**stated, **fields}))

    return change


def with_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    """Change the tensors."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return apply


def renamed(old: str, new: str) -> Change:
    """Call a module otherwise."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if old in key]:
            tensors[key.replace(old, new)] = tensors.pop(key)

    return with_tensors(change)


def with_one(name: str, *size: int) -> Change:
    """Add or replace a tensor."""
    return with_tensors(lambda tensors: tensors.update({name: torch.ones(size)}))


def both(first: Change, second: Change) -> Change:
    """Make one change after the other."""

    def change(folder: Path) -> None:
        first(folder)
        second(folder)

    return change


REFUSED: dict[str, tuple[Change, str]] = {
    "DoRA": (stating(use_dora=True), "down_proj lacks what goes with use_dora, which is True"),
    "DoRA's vectors": (with_one(f"{LAYER}.lora_magnitude_vector", 64), r"q_proj has what goes with use_dora"),
    "DoRA's vectors of another layer": (
        with_one(f"{LAYER}.lora_magnitude_vector", 32), r"q_proj: lora_magnitude_vector is \[32\], and must be \[64\]"
    ),
    "DoRA of embeddings": (
        with_one("base_model.model.model.embed_tokens.lora_magnitude_vector", 64),
        "embed_tokens: lora_magnitude_vector cannot be served; merge",
    ),
    "modules_to_save": (stating(modules_to_save=["lm_head"]), r"modules_to_save='lm_head': its file has no weight"),
    "a pattern that takes for ever": (
        stating(rank_pattern={r"(.|\w)*\d\d": 4}), "rank_pattern, alpha_pattern: a key takes too long to be matched"
    ),
    "no modules": (stating(modules_to_save="lm_head"), r"modules_to_save must be a list of names, got 'lm_head'"),
    "a whole weight": (
        with_one("base_model.model.lm_head.weight", 4, 64), r"lm_head: weight is \[4, 64\], and must be \[400, 64\]"
    ),
    "a norm": (
        with_one("base_model.model.model.norm.weight", 64), r"model\.norm is no module of this model that can have an"
    ),
    "another parameter": (
        with_one("base_model.model.lm_head.scale", 1), "lm_head: scale cannot be served; merge the adapter"
    ),
    "tokens": (stating(trainable_token_indices=[1, 2]), "trainable_token_indices: its file has no embeddings of tok"),
    "tokens of another layer": (
        stating(trainable_token_indices={"wte": [1]}), "its file has no embeddings of tokens in 'wte'"
    ),
    "no tokens": (stating(trainable_token_indices=["a"]), r"trainable_token_indices must be integers, got \['a'\]"),
    "more tokens": (
        with_one(f"{TOKENS}.trainable_tokens_delta", 2, 64),
        r"trainable_tokens_delta is \[2, 64\], and must be \[0, 64\]",
    ),
    "unknown tokens": (
        both(stating(trainable_token_indices=[1, 400]), with_one(f"{TOKENS}.trainable_tokens_delta", 2, 64)),
        "trainable_token_indices: this model has tokens from 0 to 399",
    ),
    "embeddings": (
        with_one("base_model.model.model.embed_tokens.lora_embedding_A", 4, 400), "embed_tokens has no lora_B"
    ),
    "embeddings of another model": (
        with_one("base_model.model.model.embed_tokens.lora_embedding_A", 4, 500),
        r"embed_tokens: lora_embedding_A is \[4, 500\], and must be \[4, 400\]",
    ),
    "the head": (
        renamed("model.layers.0.self_attn.q_proj", "lm_head"), r"lm_head: lora_B.weight is \[64, 4\].*\[400, 4\]"
    ),
    "a name that is none": (with_one("lora_A", 4, 64), "lora_A is no tensor that PEFT writes"),
    "a tower": (
        renamed("model.layers.0.self_attn", "model.vision_tower.layers.0.self_attn"),
        r"model\.vision_tower\.layers\.0\.self_attn\.q_proj is no linear layer .*there are down_proj, gate_proj",
    ),
    "an unknown layer": (renamed("layers.1.mlp.down_proj", "layers.7.mlp.down_proj"), r"layers\.7\.mlp\.down_proj is"),
    "another kind": (stating(peft_type="LOHA"), "peft_type is 'LOHA'"),
    "a bias": (stating(bias="some"), "bias must be one of none, all, lora_only, got 'some'"),
    "a bias of lora_B": (with_one(f"{LAYER}.lora_B.bias", 64), "q_proj has what goes with lora_bias"),
    "changed weights": (stating(init_lora_weights="pissa_niter_4"), "init_lora_weights='pissa_niter_4'"),
    "an unknown field": (stating(new_way="x"), "new_way='x': what this field asks for cannot be served; merge"),
    "copied layers": (stating(layer_replication=[[0, 2]]), "layer_replication"),
    "parameters": (stating(target_parameters=["mlp.experts"]), "target_parameters"),
    "a high rank": (stating(r=64), r"lora_A.weight is \[4, \d+\], and must be \[64, "),
    "no rank": (stating(r=0), "r must be an integer above 0"),
    "alpha": (stating(lora_alpha="x"), "lora_alpha must be a number"),
    "a large alpha": (stating(lora_alpha=10**400), "lora_alpha must be a number above 0, got 1000"),
    "a part of a rank": (stating(r=0.5), "r must be an integer above 0, got 0.5"),
    "a part of a rank in a pattern": (
        stating(rank_pattern={"q_proj": 0.5}), r"rank_pattern\['q_proj'\] must be an integer above 0"
    ),
    "a pattern": (stating(rank_pattern={"(": 4}), "no regular expression"),
    "a pattern's rank": (stating(alpha_pattern={"q_proj": None}), r"alpha_pattern\['q_proj'\]"),
    "no object": (stating(rank_pattern=[4]), "rank_pattern must be an object"),
    "another width": (with_one(f"{LAYER}.lora_A.weight", 4, 32), r"q_proj: lora_A.weight is \[4, 32\].*\[4, 64\]"),
    "another output": (with_one(f"{LAYER}.lora_B.weight", 32, 4), r"q_proj: lora_B.weight is \[32, 4\].*\[64, 4\]"),
    "half a product": (with_tensors(lambda t: t.pop(f"{LAYER}.lora_B.weight")), r"q_proj has no lora_B.weight"),
    "nothing": (with_tensors(dict.clear), "its file holds no tensors"),
    "one layer twice": (
        with_tensors(
            lambda tensors: tensors.update(
                {key.replace("base_model.model.model", "base_model.model.language_model"): tensor.clone()
                 for key, tensor in tensors.items() if "q_proj" in key}
            )
        ),
        "are the same module",
    ),
    "8 bits": (
        with_tensors(lambda t: t.update({f"{LAYER}.lora_A.weight": torch.ones(4, 64, dtype=torch.int8)})), "of type I8"
    ),
    "pickled weights": (lambda f: (f / WEIGHTS).rename(f / "adapter_model.bin") and None, "other formats run code"),
    "no configuration": (lambda f: (f / CONFIG).unlink(), f"has no {CONFIG}"),
    "no JSON": (lambda f: (f / CONFIG).write_text("{") and None, "is no JSON"),
    "a list": (lambda f: (f / CONFIG).write_text("[]") and None, "must hold an object"),
    "half a file": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:99]) and None, "is broken"),
}  # fmt: skip
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(llm: LLM, adapter: LoRARequest, name: str) -> None:
    """The same adapter is served before it is changed, and afterwards others are."""
    assert llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapter)
    change, says = REFUSED[name]
    change(Path(adapter.lora_path))
    with pytest.raises(InvalidParameterError, match=f"'adapter': .*{says}") as caught:
        llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapter)
    assert caught.value.param == "lora_request"
    assert llm.generate("yes", PARAMS, use_tqdm=False)


def test_a_rank_above_the_highest(llm: LLM, reference: Any, tmp_path: Path) -> None:
    adapter = save_adapter(
        tmp_path / "adapter", reference, 0, r=8, target_modules=["q_proj", "o_proj"], rank_pattern={"o_proj": 9}
    )
    with pytest.raises(
        InvalidParameterError, match=r"o_proj has rank 9, and this model takes up to 8; raise max_lora_"
    ):
        llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapter)


def test_requests_that_are_none(llm: LLM, adapter: LoRARequest, tmp_path: Path) -> None:
    for fields, says in (((1, 1, "x"), "lora_name"), (("a", 0, "x"), "lora_int_id"), (("a", 1, None), "lora_path")):
        with pytest.raises(InvalidParameterError, match=says):
            LoRARequest(*fields)  # type: ignore[arg-type]
    for given, says in (("adapter", "must be a LoRARequest"), ([adapter], "1 entries for 2 prompts")):
        with pytest.raises(InvalidParameterError, match=says):
            llm.generate(["yes", "no"], PARAMS, use_tqdm=False, lora_request=given)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="there is no directory"):
        llm.generate("yes", PARAMS, use_tqdm=False, lora_request=LoRARequest("a", 1, str(tmp_path / "nothing")))
    prepared = llm.engine.input_processor.process("yes")
    with pytest.raises(InvalidParameterError, match="the prompt is prepared"):
        llm.generate([prepared], PARAMS, use_tqdm=False, lora_request=adapter)


def test_models_without_adapters(path: Path, adapter: LoRARequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded without, or in an environment without the extension; settings that cannot be."""
    with LLM(str(path), max_model_len=64) as llm:
        with pytest.raises(InvalidParameterError, match="load it with enable_lora=True"):
            llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapter)
        assert not [part for part in llm.engine.runner.parts if "lora" in type(part).__module__]
    for wrong in ({"max_loras": 0}, {"max_lora_rank": "8"}, {"max_loras": 4, "max_cpu_loras": 3}, {"enable_lora": 1}):
        with pytest.raises(ConfigError, match=list(wrong)[-1]):
            LLM(str(path), **{"enable_lora": True, **wrong})
    manager = load_extensions()
    extension = next(found for name, found in manager.list_name_plugin() if "lora" in name)
    manager.unregister(extension)
    try:
        with pytest.raises(ConfigError, match=r"pip install \./extensions/lora"):
            LLM(str(path), enable_lora=True)
        with LLM(str(path), max_model_len=64) as llm:
            with pytest.raises(InvalidParameterError, match=r"pip install \./extensions/lora"):
                llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapter)
            with pytest.raises(PromptError, match=r"pip install \./extensions/lora"):
                llm.generate({"prompt": "yes", "lora_request": adapter}, PARAMS, use_tqdm=False)
    finally:
        manager.register(extension, name="corellm-lora")


def test_models_that_cannot_have_adapters(tmp_path: Path) -> None:
    """A decoder's layers that run on the states of an encoder, and encoder-only models."""
    from corellm_florence2.tiny import make_tiny_checkpoint as make_florence2
    from extensions.pooling.tests.text_encoders.checkpoints import make_tiny_encoder

    with pytest.raises(ConfigError, match=r"Florence2ForConditionalGeneration is an encoder-decoder; "):
        LLM(str(make_florence2(tmp_path / "florence2")), enable_lora=True)
    make_tiny_encoder(tmp_path / "encoder", "BertModel", type_vocab_size=2)
    with pytest.raises(ConfigError, match="this model has no decoder"):
        LLM(str(tmp_path / "encoder"), enable_lora=True)


def test_an_adapter_of_the_hub(llm: LLM, adapter: LoRARequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two files are asked for once, by the rule for models; what the hub does not give is refused."""
    asked = []

    def download(name: str, **more: Any) -> str:
        asked.append((name, more["allow_patterns"]))
        if name == "org/other":
            raise OSError("offline")
        return adapter.lora_path

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    outputs = [
        llm.generate("yes", params, use_tqdm=False, lora_request=LoRARequest("a", 1, path))[0].outputs[0].token_ids
        for path in (adapter.lora_path, "org/adapter", "org/adapter")
    ]
    assert outputs[0] == outputs[1] == outputs[2]
    assert asked == [("org/adapter", [CONFIG, WEIGHTS])]
    with pytest.raises(
        InvalidParameterError, match=r"LoRA adapter 'b': no LoRA adapter 'org/other': .* the hub did not"
    ):
        llm.generate("yes", params, use_tqdm=False, lora_request=LoRARequest("b", 1, "org/other"))
    monkeypatch.chdir(Path(adapter.lora_path).parent)
    for path in ("/org/other", "adapter/nope"):  # in a directory that is there, a path is meant
        with pytest.raises(InvalidParameterError, match=f"there is no directory '{path}'"):
            llm.generate("yes", params, use_tqdm=False, lora_request=LoRARequest("b", 1, path))
    assert len(asked) == 2


def test_sizes_without_adapters() -> None:
    """They would have no effect."""
    wanted: Any = 32
    for name in ("max_loras", "max_lora_rank", "max_cpu_loras"):
        with pytest.raises(ConfigError, match=f"{name} needs enable_lora"):
            ModelConfig(**{"model": "demo", name: wanted})
    assert ModelConfig(model="demo", max_loras=1, max_lora_rank=16).enable_lora is False

"""A model whose packed weights are kept: results are the same bit for bit, in the first start and in later ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save

from corellm import LLM, SamplingParams
from corellm.errors import ConfigError
from corellm.plugin.extensions import installed_extensions
from corellm_kernels.cpu import library
from corellm_kernels.cpu.kept_tensors import KeptTensors
from extensions.pooling.tests.text_encoders.checkpoints import make_tiny_encoder
from tests.fixtures import random_image

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason="packed weights are the kernels'")

MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "float32": ("corellm_llava.tiny", {"dtype": "float32"}),
    "bfloat16, 8 bits": ("corellm_llava.tiny", {"dtype": "bfloat16", "quantization": "int8"}),
    "float32, 4 bits": ("corellm_llava.tiny", {"dtype": "float32", "quantization": "int4"}),
    "tied embeddings": ("corellm_gemma3.tiny", {"dtype": "float32"}),
}


def said(llm: LLM) -> list[Any]:
    """Tokens and log-probabilities of two requests, one with an image."""
    (placeholder,) = {"<image>", "<start_of_image>"} & {*llm.get_tokenizer().get_vocab()}
    image = {"prompt": f"{placeholder} what is it?", "multi_modal_data": {"image": random_image(56, 56, 1)}}
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
    outputs = llm.generate(["one and two", image], params, use_tqdm=False)
    return [(output.outputs[0].token_ids, repr(output.outputs[0].logprobs)) for output in outputs]


def start(path: Path, **options: Any) -> LLM:
    return LLM(str(path), max_model_len=256, num_kv_blocks=64, max_num_seqs=4, **options)


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a cache, in a start that makes it, in one that finds it, and in one that finds it damaged."""
    tiny, options = MODELS[name]
    path, cache = import_module(tiny).make_tiny_checkpoint(tmp_path / "model"), tmp_path / "cache"
    with start(path, **options) as llm:
        want = said(llm)
    with start(path, **options, weight_cache=cache) as llm:
        assert said(llm) == want
    (file,) = cache.iterdir()
    data = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.delattr(KeptTensors, "keep")  # all is found
        with start(path, **options, weight_cache=cache) as llm:
            assert said(llm) == want
    file.write_bytes(data[:-2000] + bytes(2000))
    with start(path, **options, weight_cache=cache) as llm:
        assert said(llm) == want
    assert "is damaged" in caplog.text
    assert file.read_bytes() == data


def test_other_weights_and_other_settings_have_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that replace a checkpoint's, or a loaded model's, are never mistaken for those that were kept.

    Nor those that other extensions, or other versions of them, may have rounded otherwise.
    """
    from corellm_llava.tiny import make_tiny_checkpoint

    path, other, cache = tmp_path / "model", make_tiny_checkpoint(tmp_path / "other", seed=1), tmp_path / "cache"
    make_tiny_checkpoint(path)
    with start(other, dtype="float32") as llm:
        want = said(llm)
    with start(path, dtype="float32", weight_cache=cache):
        pass
    (file,) = cache.iterdir()
    kept = file.read_bytes()
    with start(path, dtype="float32", weight_cache=cache) as llm:  # mapped
        before = said(llm)
        assert before != want
        llm.update_weights(other)
        assert said(llm) == want
        llm.sleep(level=2)
        llm.wake_up()
        assert said(llm) == want
    assert [*cache.iterdir()] == [file]
    assert file.read_bytes() == kept
    (other / "model.safetensors").replace(path / "model.safetensors")
    with start(path, dtype="float32", weight_cache=cache) as llm:
        assert said(llm) == want
    with start(path, dtype="float32", weight_cache=cache, quantization="int8"):
        pass
    assert len([*cache.iterdir()]) == 3
    others = [replace(entry, version="0.0") for entry in installed_extensions()]
    monkeypatch.setattr("corellm.loading.weight_key.installed_extensions", lambda: others)
    with start(path, dtype="float32", weight_cache=cache, quantization="int8"):
        pass
    assert len([*cache.iterdir()]) == 4


def test_weights_that_change_in_place_are_other_weights(tmp_path: Path) -> None:
    """Also where the file keeps its inode, its size and its time, and a panel that is compared is the same."""
    from corellm_llava.tiny import make_tiny_checkpoint

    path, cache = make_tiny_checkpoint(tmp_path / "model"), tmp_path / "cache"
    with start(path, dtype="float32", weight_cache=cache) as llm:
        before = said(llm)
    file = path / "model.safetensors"
    stat, tensors = file.stat(), load_file(file)
    (name,) = [name for name in tensors if name.endswith("lm_head.weight")]
    tensors[name] = tensors[name].clone()
    tensors[name][:16] *= -3
    file.write_bytes(save(tensors, {"format": "pt"}))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (file.stat().st_ino, file.stat().st_size) == (stat.st_ino, stat.st_size)
    with start(path, dtype="float32") as llm:
        want = said(llm)
    assert want != before
    with start(path, dtype="float32", weight_cache=cache) as llm:
        assert said(llm) == want


def test_weights_of_a_text_encoder_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = make_tiny_encoder(tmp_path / "model", "BertModel", type_vocab_size=2), tmp_path / "cache"
    (path / "link.json").symlink_to(tmp_path / "nowhere")

    def embedding(**options: Any) -> list[float]:
        with LLM(str(path), dtype="float32", **options) as llm:
            return llm.embed(["one and two"], use_tqdm=False)[0].outputs.embedding

    want = embedding()
    assert embedding(weight_cache=cache) == want
    assert len([*cache.iterdir()]) == 1
    monkeypatch.delattr(KeptTensors, "keep")  # all is found
    assert embedding(weight_cache=cache) == want


@pytest.mark.parametrize(
    "case",
    ["large", "small", "off", "no folder can be made", "in memory"],
)
def test_weights_of_large_models_are_kept_unasked(
    case: str, tiny_llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the user's cache, if files may lie there; without it, the start goes on, and says so once.

    No other test has a model that is as large: none writes to the home of who runs it.
    """
    users = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(users))
    if case != "small":
        monkeypatch.setattr("corellm.loading.weight_key._WORTH_IT", 1 << 16)
    if case == "no folder can be made":
        users.touch()
    kind = "tmpfs" if case == "in memory" else "ext4"
    monkeypatch.setattr("corellm.system.cache_folder._file_system", lambda path: kind)
    with start(tiny_llava, dtype="float32", device="cpu", **({"weight_cache": "none"} if case == "off" else {})):
        pass
    kept = [path for path in users.rglob("*") if path.is_file()]
    assert [path.parent for path in kept] == ([users / "corellm" / "weights"] if case == "large" else [])
    warned = case in ("no folder can be made", "in memory")
    assert caplog.text.count("weight_cache can name another folder, or none") == warned


@pytest.mark.parametrize(
    "options",
    [
        {"weight_cache": ""},
        {"weight_cache": 3},
        {"weight_cache": __file__},
        {"weight_cache_bytes": 0},
        {"weight_cache_bytes": "1 GB"},
    ],
)
def test_wrong_settings_are_refused(tiny_llava: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="weight_cache"):
        LLM(str(tiny_llava), **options)

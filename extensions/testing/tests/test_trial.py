"""`corellm try`: what it says of right checkpoints, of broken adapters and of checkpoints that do not load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from corellm.cli import main
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.hookspecs import hookimpl
from corellm.loading.locating import locate
from corellm.multimodal import PromptReplacement
from corellm.system.memory import DeviceMemory
from corellm.tiny_checkpoints import write_json
from corellm_llava import Llava
from corellm_testing.reference import Continuation, Reference
from corellm_testing.trial import Trial, reference_of
from corellm_transformers.contract import AnyReference

Try = Callable[..., tuple[int, str, str]]
Findings = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny(family)`: its tiny checkpoint, made once."""

    @cache
    def make(family: str) -> Path:
        path: Path = import_module(f"corellm_{family}.tiny").make_tiny_checkpoint(tmp_path_factory.mktemp(family))
        return path

    return make


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Try:
    """`run(checkpoint, *options)`: status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main(["try", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def findings_of(output: tuple[int, str, str]) -> Findings:
    status, out, _ = output
    found: list[dict[str, Any]] = json.loads(out)
    assert status == int(not all(finding["kept"] for finding in found))
    return {finding["check"]: finding for finding in found}


def broken(found: Findings) -> dict[str, str | None]:
    """The checks that do not hold, and the hook that each names."""
    return {check: finding["hook"] for check, finding in found.items() if not finding["kept"]}


def test_a_right_checkpoint(run: Try, tiny: Callable[[str], Path]) -> None:
    """Every check holds, several kinds of items included; requests are of text and of each kind and count."""
    found = findings_of(run(tiny("qwen_vl"), "--json", "--tokens", 4))
    assert not broken(found)
    assert {"loads", "text", "image, 3 of them", "video, then a question"} <= set(found)
    pairs = {f"{one} and {other} in a conversation" for one in ("image", "video") for other in ("image", "video")}
    assert pairs <= set(found)
    assert found["text"]["said"].startswith("22 + 4 tokens, log-probabilities within ")
    status, out, err = run(tiny("llava"), "--tokens", 2)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "12 of 12: all outputs are the reference's"


def test_one_item_makes_no_pair(run: Try, tiny: Callable[[str], Path]) -> None:
    """A model of one image a prompt is not said to take pairs; its plugin's contract names another oracle."""
    found = findings_of(run(tiny("molmo"), "--json", "--tokens", 2))
    assert not broken(found)
    assert found["the reference loads"]["said"] == "the plugin's own PlainMolmo"
    assert not any("conversation" in check or "of them" in check for check in found)


def test_wrong_embeddings(run: Try, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with images differ, those of text do not; a batch has the same wrong outputs."""
    whole = Llava.get_multimodal_embeddings

    @hookimpl
    def reversed_(self: Llava, model: Any, mm_kwargs: Any) -> list[torch.Tensor]:
        return [embeddings.flip(0) for embeddings in whole(self, model, mm_kwargs)]

    monkeypatch.setattr(Llava, "get_multimodal_embeddings", reversed_)
    found = findings_of(run(tiny("llava"), "--json", "--tokens", 4))
    wrong = broken(found)
    assert found["all of these in one batch"]["kept"]
    assert found["text"]["kept"]
    assert found["different items are told apart"]["kept"]
    assert {check for check in found if "image" in check} == set(wrong)
    assert all(hook is not None and "get_multimodal_embeddings" in hook for hook in wrong.values())
    status, out, _ = run(tiny("llava"), "--tokens", 4)
    assert status == 1
    assert "DIFFERS image, small" in out
    assert "look at: get_multimodal_embeddings" in out


def test_wrong_placeholders(run: Try, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that the checks at load refuse: one finding, with the hook."""

    @hookimpl
    def short(self: Llava, hf_config: Any) -> list[PromptReplacement]:
        return [PromptReplacement("image", [hf_config.image_token_index], [hf_config.image_token_index] * 3)]

    monkeypatch.setattr(Llava, "get_prompt_updates", short)
    found = findings_of(run(tiny("llava"), "--json"))
    assert set(broken(found)) == set(found) == {"loads"}
    assert found["loads"]["hook"] is not None


def test_a_weight_is_missing(run: Try, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """The checkpoint does not load: the reason, and exit status 1."""
    checkpoint = Path(shutil.copytree(tiny("llava"), tmp_path / "broken"))
    weights = load_file(checkpoint / "model.safetensors")
    del weights[sorted(weights)[0]]
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    status, out, _ = run(checkpoint)
    assert status == 1
    assert out.startswith("DIFFERS loads\n")
    assert out.splitlines()[-1].startswith("0 of 1: ")


@pytest.mark.parametrize(
    ("architecture", "hook"),
    [("VipLlavaForConditionalGeneration", "get_prompt_updates"), ("Qwen4ExpForConditionalGeneration", None)],
)
def test_what_a_plugin_would_say(run: Try, tmp_path: Path, architecture: str, hook: str | None) -> None:
    """A model that the generic adapter refuses: the hook in which a plugin of its family would say it, or none can."""
    from corellm_transformers.tiny import make_tiny_checkpoint

    make_tiny_checkpoint(tmp_path, architecture=architecture)
    processor = tmp_path / "processor_config.json"
    stated = json.loads(processor.read_text(encoding="utf-8"))
    write_json(tmp_path, {processor.name: {**stated, "patch_size": None}})  # of VipLlava: it counts no image's tokens
    found = findings_of(run(tmp_path, "--json"))
    assert broken(found) == {"loads": hook}
    assert ("plugin of its own" in found["loads"]["said"]) == (hook is not None)


def test_the_reference_fails(run: Try, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not load, nothing is compared; a NaN of its log-probabilities is a difference."""
    true = Reference.generate

    def unclear(self: Reference, *arguments: Any) -> Continuation:
        found = true(self, *arguments)
        return replace(found, logprobs=[*found.logprobs[:-1], float("nan")])

    monkeypatch.setattr(Reference, "generate", unclear)
    found = findings_of(run(tiny("llava"), "--json", "--tokens", 2))
    assert not found["text"]["kept"]
    monkeypatch.setattr(Reference, "model", property(lambda self: 1 / 0))
    found = findings_of(run(tiny("llava"), "--json", "--tokens", 2))
    assert broken(found) == {"the reference loads": None}
    assert list(found) == ["loads", "the reference loads"]


def test_limits_of_the_operator(run: Try, tiny: Callable[[str], Path]) -> None:
    """Items that the operator does not let in are not asked about."""
    found = findings_of(run(tiny("qwen_vl"), "--json", "--tokens", 2, "--limit-mm-per-prompt", '{"image": 0}'))
    assert not broken(found)
    assert not any("image" in check for check in found)


@pytest.mark.parametrize(
    "option",
    [
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"kv_cache_dtype": "int8"},
        {"mm_processor_kwargs": {"do_normalize": False}},
    ],
    ids=str,
)
def test_options_that_change_outputs(option: dict[str, Any], tiny: Callable[[str], Path]) -> None:
    """They are refused before anything is loaded; float32 said once more is not."""
    with pytest.raises(ConfigError, match=next(iter(option))):
        Trial(str(tiny("llava")), **option)
    Trial(str(tiny("llava")), dtype="float32")


def test_too_little_memory(run: Try, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models that do not fit are refused by their weights, before one is loaded."""
    monkeypatch.setattr(DeviceMemory, "free", lambda self: 1000)
    status, out, err = run(tiny("llava"))
    assert (status, out) == (1, "")
    assert "smaller checkpoint" in err
    assert "--tokens" in run(tiny("llava"), "--tokens", 0)[2]


def test_the_oracle_is_the_plugins(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """A family's contract names its oracle; where an adapter's package has no contract, it is transformers'."""
    from corellm_transformers.tiny import make_tiny_checkpoint

    make_tiny_checkpoint(tmp_path, architecture="AyaVisionForConditionalGeneration")
    kinds = {
        name: reference_of(locate(EngineConfig.from_kwargs(model=str(path)).model))
        for name, path in {"llava": tiny("llava"), "molmo": tiny("molmo"), "any": tmp_path}.items()
    }
    assert kinds["any"] is AnyReference
    assert kinds["llava"] is Reference
    assert issubclass(kinds["molmo"], Reference)
    assert kinds["molmo"] is not Reference

"""Checkpoints of published formats give what transformers gives of their weights in float32."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoProcessor, LlavaForConditionalGeneration

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError
from corellm_kernels.cpu.kept_tensors import KeptTensors
from corellm_quantization.published import published
from extensions.quantization.tests.oracle import greedy
from extensions.quantization.tests.published_checkpoints import Rounded, awq, compressed, gptq, rounded, write
from tests.fixtures import random_image

PARAMS = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True)
PROMPT, IMAGE = "USER: <image>\nWhat shape? ASSISTANT:", random_image(60, 50, 1)


class Kind(NamedTuple):
    """A format: how weights are rounded, laid out, and what the checkpoint states."""

    round_weight: Callable[[Tensor], Rounded]
    layout: Callable[[Rounded], Mapping[str, Tensor]]
    stated: Mapping[str, Any]


def stated_compressed(bits: int, **weights: Any) -> dict[str, Any]:
    """What compressed-tensors states."""
    kept = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32} | weights
    scheme = {"targets": ["Linear"], "weights": kept, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }  # fmt: skip


def stated_gptq(**others: Any) -> dict[str, Any]:
    """What GPTQ states."""
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False} | others


MIXED = stated_compressed(4) | {
    "format": "mixed-precision",
    "config_groups": {
        form: stated_compressed(bits, type=kind)["config_groups"]["group_0"] | {"format": form}
        for form, bits, kind in (("pack-quantized", 4, "int"), ("float-quantized", 8, "float"))
    },
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
KINDS = {
    "gptq": Kind(partial(rounded, bits=4, group=32), partial(gptq, bits=4), stated_gptq()),
    "gptq 8 bits, whole rows": Kind(
        partial(rounded, bits=8, group=-1), partial(gptq, bits=8), stated_gptq(bits=8, group_size=-1)
    ),
    "gptq version 2": Kind(
        partial(rounded, bits=4, group=64), partial(gptq, bits=4, version=2),
        stated_gptq(group_size=64, checkpoint_format="gptq_v2"),
    ),
    "gptq act order": Kind(
        partial(rounded, bits=4, group=32, shuffled=True), partial(gptq, bits=4), stated_gptq(desc_act=True)
    ),
    "awq": Kind(partial(rounded, bits=4, group=32), partial(awq, bits=4), AWQ),
    "compressed-tensors W4A16": Kind(
        partial(rounded, bits=4, group=32, symmetric=True), partial(compressed, bits=4, symmetric=True),
        stated_compressed(4),
    ),
    "compressed-tensors W4A16, asymmetric, act order": Kind(
        partial(rounded, bits=4, group=32, shuffled=True), partial(compressed, bits=4, symmetric=False, shuffled=True),
        stated_compressed(4, symmetric=False, actorder="group"),
    ),
    "compressed-tensors W8A16": Kind(
        partial(rounded, bits=8, group=-1, symmetric=True), partial(compressed, bits=8, symmetric=True),
        stated_compressed(8, strategy="channel", group_size=None),
    ),
}  # fmt: skip


def is_rounded(name: str) -> bool:
    """Whether a weight is one of the decoder's linear layers."""
    return re.search(r"language_model.*(_proj)\.weight$", name) is not None


def of_transformers(path: Path) -> tuple[list[int], Tensor]:
    """Tokens and log-probabilities in float32."""
    model = LlavaForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    inputs = AutoProcessor.from_pretrained(path)(images=IMAGE, text=PROMPT, return_tensors="pt")
    return greedy(model, inputs)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_weights_are_exactly_the_formats(kind: Kind) -> None:
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(0))
    made = kind.round_weight(weight)
    found = published(kind.stated)
    assert found is not None
    read = found.read(kind.layout(made))
    assert torch.equal(read.widened(), made.widened)
    assert (made.widened - weight).norm() < 0.2 * weight.norm()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_checkpoint_is_the_model_of_its_weights(
    kind: Kind, tiny_llava: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tiny_llava, tmp_path / "packed", is_rounded, kind.round_weight, kind.layout, kind.stated)
    plain = write(tiny_llava, tmp_path / "plain", is_rounded, kind.round_weight, None, None)
    tokens, logprobs = of_transformers(plain)
    request = {"prompt": PROMPT, "multi_modal_data": {"image": IMAGE}}
    with caplog.at_level(logging.INFO), LLM(str(path), dtype="float32") as llm:
        output = llm.generate(request, PARAMS, use_tqdm=False)[0].outputs[0]
        beside = llm.generate([request, PROMPT.replace("<image>", ""), request], PARAMS, use_tqdm=False)[0].outputs[0]
    assert output.token_ids == tokens
    assert output.logprobs is not None
    for step, wanted in zip(output.logprobs, logprobs, strict=True):
        assert all(abs(found.logprob - wanted[token].item()) < 2e-3 for token, found in step.items())
    assert (beside.token_ids, beside.logprobs) == (output.token_ids, output.logprobs)  # bit for bit
    bits = kind.stated.get("bits") or kind.stated["config_groups"]["group_0"]["weights"]["num_bits"]
    assert f"packed weights of {bits} bits" in caplog.text
    assert "one projection for query, key and value" in caplog.text


def test_packed_weights_are_kept_for_later_starts(
    tiny_llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS["gptq act order"]
    path = write(tiny_llava, tmp_path / "packed", is_rounded, kind.round_weight, kind.layout, kind.stated)
    said = []
    for options in ({}, {"weight_cache": tmp_path / "cache"}, {"weight_cache": tmp_path / "cache"}):
        with LLM(str(path), dtype="float32", **options) as llm:
            said.append(llm.generate(PROMPT.replace("<image>", ""), PARAMS, use_tqdm=False)[0].outputs[0])
        if options:
            monkeypatch.delattr(KeptTensors, "keep", raising=False)  # the last start finds all
    assert len([*(tmp_path / "cache").iterdir()]) == 1
    assert [(output.token_ids, output.logprobs) for output in said[1:]] == [(said[0].token_ids, said[0].logprobs)] * 2


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (stated_gptq(bits=3), "gptq with weights of 3 bits"),
        (stated_gptq(group_size=24), "gptq with groups of 24"),
        (AWQ | {"version": "gemv"}, "awq with version 'gemv'"),
        (stated_compressed(4) | {"format": "float-quantized"}, "compressed-tensors with format 'float-quantized'"),
        (stated_compressed(4, type="float"), "'pack-quantized' of 'float' weights of 4 bits"),
        (stated_compressed(4, strategy="block"), "strategy 'block'"),
        (stated_compressed(8, strategy="block", block_structure=[32, 32]), "integers in blocks of 32 x 32"),
        (stated_compressed(4) | {"config_groups": {}}, "0 kinds of layers"),
        (MIXED, "2 kinds of layers; one can be read, or several of integers in 'pack-quantized'"),
        ({"quant_method": "bitsandbytes"}, "neither 'load_in_4bit' nor 'load_in_8bit'"),
    ],
)
def test_variants_are_refused_by_name(stated: Mapping[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        published(stated)
    assert published({"quant_method": "spqr"}) is None


def test_the_extension_is_named_where_it_is_missed(
    tiny_llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS["compressed-tensors W4A16"]
    path = write(tiny_llava, tmp_path / "packed", is_rounded, kind.round_weight, kind.layout, kind.stated)
    monkeypatch.setattr("corellm.modelling.defaults.first_result", lambda *_, **given: None)
    with pytest.raises(CheckpointError, match=r"in compressed-tensors need corellm-quantization; .*install \./ext"):
        LLM(str(path))


def test_a_format_that_nobody_knows_is_refused_by_name(tiny_llava: Path, tmp_path: Path) -> None:
    kind = KINDS["gptq"]
    stated = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    path = write(tiny_llava, tmp_path / "packed", is_rounded, kind.round_weight, None, stated)
    with pytest.raises(CheckpointError, match="nothing here reads weights in 'modelopt'"):
        LLM(str(path))


def test_broken_checkpoints_are_refused_by_the_layers_name(tiny_llava: Path, tmp_path: Path) -> None:
    kind = KINDS["gptq"]
    path = write(tiny_llava, tmp_path / "packed", is_rounded, kind.round_weight, kind.layout, kind.stated)
    tensors = load_file(path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("q_proj.scales"))

    def refused(changed: Mapping[str, Tensor], message: str) -> None:
        save_file(dict(changed), path / "model.safetensors", {"format": "pt"})
        with pytest.raises(CheckpointError, match=message):
            LLM(str(path))

    refused({key: value for key, value in tensors.items() if key != name}, r"q_proj: the checkpoint lacks 'scales'")
    refused(tensors | {name: tensors[name][:, :8].contiguous()}, r"q_proj: scales \(8, \d+\) and zeros")
    refused(tensors | {"else.where.qweight": tensors[name].clone()}, r"else.where is quantized, and no linear layer")
    order = torch.zeros(tensors[name.replace("scales", "g_idx")].shape, dtype=torch.int32)
    refused(tensors | {name.replace("scales", "g_idx"): order}, r"q_proj: the inputs' groups \(g_idx\)")

"""Weights of 4 bits: how they are rounded, and models that have them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import LlavaForConditionalGeneration

import corellm.loading.model_parts
from corellm import LLM, SamplingParams
from corellm.errors import MissingExtraError
from corellm.outputs import RequestOutput
from corellm.quantization import is_quantizable
from corellm_kernels.grouped_linear import GroupedLinear, rounded_scales
from corellm_kernels.int8_linear import Int8Linear, round_rows
from corellm_quantization import rounding
from corellm_quantization.int4 import GROUP, to_int4
from corellm_quantization.rounding import round_groups
from tests.fixtures import random_image

KERNELS = {"kernels": {}, "torch": {"fuse_layers": False, "attention_backend": "cpu"}}
PARAMS = SamplingParams(temperature=0, max_tokens=8, logprobs=4, ignore_eos=True)
PROMPTS = ["USER: <image>\nWhat shape? ASSISTANT:", "USER: <image>\nWhere is it? ASSISTANT:"]
REQUESTS = [
    {"prompt": prompt, "multi_modal_data": {"image": random_image(*size, 1)}}
    for prompt, size in zip(PROMPTS, [(60, 50), (31, 90)], strict=True)
]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40), k=st.integers(1, 300), group=st.sampled_from([32, 64, 128]), size=st.floats(1e-4, 1e3),
    shift=st.floats(-2, 2), seed=st.integers(0, 99),
)  # fmt: skip
def test_groups_are_rounded_no_worse_than_over_their_range(
    n: int, k: int, group: int, size: float, shift: float, seed: int
) -> None:
    weight = (torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) + shift) * size
    rounded = round_groups(weight, group)
    values = nn.functional.pad(weight, (0, -k % group)).view(n, -1, group)
    low, high = values.amin(2).clamp(max=0), values.amax(2).clamp(min=0)
    scale = rounded_scales((high - low) / 15)
    zero = (-low / scale * 8).round() / 8
    plain = (values / scale[:, :, None] + zero[:, :, None]).round().clamp(0, 15) - zero[:, :, None]
    worst = (plain * scale[:, :, None] - values).view(n, -1)[:, :k].norm()
    assert (rounded.widened() - weight).norm() <= 1.0001 * worst
    assert rounded.integers.max() <= 15


def test_a_group_with_an_outlier_is_clipped() -> None:
    weight = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)) * 0.1
    weight[0, 3] = 1.0
    assert round_groups(weight, 64).widened().max() < 1


def test_integers_that_fit_are_kept_and_zeros_and_what_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.arange(16).repeat(3, 4).float() * 0.25 - 2
    weight[1] = 0
    rounded = round_groups(weight, 32)
    assert torch.equal(rounded.widened(), weight)
    monkeypatch.setattr(rounding, "_WEIGHTS_AT_ONCE", 64)
    assert torch.equal(round_groups(weight, 32).widened(), weight)
    weight[2, 40] = torch.nan
    widened = round_groups(weight, 32).widened()
    assert widened[2, 32:].isnan().all()
    assert torch.equal(widened[:2], weight[:2])


def test_the_output_layer_has_8_bits_and_small_ones_stay() -> None:
    class Model(nn.ModuleDict):
        def get_output_embeddings(self) -> nn.Module:
            return self["head"]

    layers = {"inner": nn.Linear(64, 32), "router": nn.Linear(64, 4), "head": nn.Linear(64, 100)}
    model = Model(layers).requires_grad_(False)
    quantize = to_int4(model)
    make = quantize(layers["inner"])
    assert make is not None
    assert isinstance(make(layers["inner"]), GroupedLinear)
    assert quantize(layers["head"]) is Int8Linear
    assert quantize(layers["router"]) is None
    assert to_int4(nn.Sequential())(layers["head"]) is make


@pytest.fixture(scope="module")
def rounded_llava(tiny_llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with its weights replaced by their rounded values, saved by transformers."""
    model = LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32).requires_grad_(False)
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, nn.Linear) and is_quantizable(module):
            if module is head:
                rounded, factors = round_rows(module.weight)
                module.weight.copy_(rounded * factors[:, None])
            else:
                module.weight.copy_(round_groups(module.weight, GROUP).widened())
    path = tmp_path_factory.mktemp("rounded")
    model.save_pretrained(path)
    for file in tiny_llava.iterdir():
        if not (path / file.name).exists():
            (path / file.name).symlink_to(file)
    return path


@pytest.fixture(scope="module")
def wanted(rounded_llava: Path) -> list[RequestOutput]:
    """What the model of rounded values says."""
    with LLM(str(rounded_llava), dtype="float32") as llm:
        return llm.generate(REQUESTS, PARAMS, use_tqdm=False)


def assert_same(found: list[RequestOutput], wanted: list[RequestOutput]) -> None:
    """Tokens are the same, log-probabilities nearly."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        pairs = zip(ours.outputs[0].logprobs or (), theirs.outputs[0].logprobs or (), strict=True)
        for one, other in pairs:
            assert one.keys() == other.keys()
            assert all(abs(one[token].logprob - other[token].logprob) < 2e-3 for token in one)


@pytest.mark.parametrize("options", KERNELS.values(), ids=KERNELS)
def test_a_model_is_the_one_of_rounded_weights(
    options: dict[str, Any], tiny_llava: Path, wanted: list[RequestOutput], caplog: pytest.LogCaptureFixture
) -> None:
    """With all linear layers rounded, in the encoder, too; alone and in a batch."""
    with caplog.at_level(logging.INFO), LLM(str(tiny_llava), dtype="float32", quantization="int4", **options) as llm:
        together = llm.generate(REQUESTS, PARAMS, use_tqdm=False)
        alone = [llm.generate(request, PARAMS, use_tqdm=False)[0] for request in REQUESTS]
    assert ("of 4 bits" if not options else "int4") in caplog.text
    assert_same(together, wanted)
    for one, other in zip(alone, together, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        if not options:
            assert one.outputs[0].logprobs == other.outputs[0].logprobs  # bit for bit


def test_it_is_not_the_model_of_8_bits(tiny_llava: Path, wanted: list[RequestOutput]) -> None:
    with LLM(str(tiny_llava), dtype="float32", quantization="int8") as llm:
        other = llm.generate(REQUESTS, PARAMS, use_tqdm=False)
    with pytest.raises(AssertionError):
        assert_same(other, wanted)


def test_it_is_missed_where_it_is_not(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_read(*args: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(corellm.loading.model_parts, "first_result", lambda hook, *args, **given: None)
    monkeypatch.setattr(corellm.loading.model_parts, "load_model", not_read)
    with pytest.raises(MissingExtraError, match=r"quantization='int4' needs corellm-quantization; .*pip install"):
        LLM(str(tiny_llava), quantization="int4")

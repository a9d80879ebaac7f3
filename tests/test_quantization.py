"""Weights of 8 bits: how they are rounded, and models that have them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoProcessor, LlavaForConditionalGeneration

from corellm import LLM, SamplingParams
from corellm.errors import ConfigError
from corellm.quantization import is_quantizable, quantize_linears
from corellm_kernels.int8_inputs import rounded_inputs
from corellm_kernels.int8_linear import Int8Linear, round_rows, to_int8
from tests.fixtures import random_image

TORCH: dict[str, Any] = {"fuse_layers": False, "attention_backend": "cpu"}
KERNELS = {
    "kernels": {},
    "torch": TORCH,
    "kernels, inputs too": {"activation_dtype": "int8"},
    "torch, inputs too": {**TORCH, "activation_dtype": "int8"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 70), k=st.integers(1, 300), size=st.floats(1e-4, 1e3), seed=st.integers(0, 99))
def test_rows_are_rounded_to_the_nearest(dtype: torch.dtype, n: int, k: int, size: float, seed: int) -> None:
    weight = (torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * size).to(dtype)
    rounded, factors = round_rows(weight)
    assert rounded.dtype == torch.int8
    assert (rounded.abs().amax(1) == 127).all()
    error = (rounded.float() * factors[:, None] - weight.float()).abs()
    assert (error <= factors[:, None] * 0.5001).all()


def test_large_weights_are_rounded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(100, 33)
    whole = round_rows(weight)
    for limit in (1, 66, 1000):
        monkeypatch.setattr("corellm_kernels.int8_linear._WEIGHTS_AT_ONCE", limit)
        assert all(map(torch.equal, round_rows(weight), whole))


def test_rows_of_zeros_and_of_no_numbers() -> None:
    layer = nn.Linear(8, 3, bias=False).requires_grad_(False)
    layer.weight[0], layer.weight[1, 3] = 0, torch.nan
    output = Int8Linear(layer)(torch.ones(2, 8))
    assert (output[:, 0] == 0).all()
    assert output[:, 1].isnan().all()
    assert output[:, 2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_layer_is_the_one_of_rounded_weights(dtype: torch.dtype) -> None:
    for bias in (True, False):
        layer = nn.Linear(40, 64, bias=bias, dtype=dtype).requires_grad_(False)
        ours, x = Int8Linear(layer), torch.randn(3, 5, 40).to(dtype) * 300  # times 127 is too much for float16
        rounded, factors = round_rows(layer.weight)
        exact = x.double() @ (rounded.double() * factors[:, None].double()).T
        exact = exact if layer.bias is None else exact + layer.bias.double()
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(ours(x), exact.to(dtype), rtol=tolerance, atol=tolerance * 100)


def test_fused_layers_for_gpus_take_it() -> None:
    """They add products to the residual; with a plain layer, in the matrix product."""
    from corellm_kernels.gpu.kernel_set import add_product

    layer = nn.Linear(40, 64, bias=False).requires_grad_(False)
    x, residual = torch.randn(2, 3, 40), torch.randn(2, 3, 64)
    for linear in (layer, Int8Linear(layer)):
        total = residual.clone()
        add_product(total, x, linear)
        torch.testing.assert_close(total, residual + linear(x))


def test_embeddings_and_small_layers_stay() -> None:
    embedding = nn.Embedding(100, 8)
    head = nn.Linear(8, 100, bias=False)
    head.weight = embedding.weight
    model = nn.ModuleDict({"embed": embedding, "router": nn.Linear(8, 4), "head": head}).requires_grad_(False)
    assert quantize_linears(model, to_int8) == 1
    assert isinstance(model["head"], Int8Linear)
    assert type(model["router"]) is nn.Linear
    assert model["embed"].weight.dtype == torch.float32


PROMPTS = ["USER: <image>\nWhat shape? ASSISTANT:", "USER: <image>\nWhere is it? ASSISTANT:"]
SIZES = [(60, 50), (31, 90)]


def rounded_in_transformers(path: Path, *, inputs_too: bool) -> list[tuple[list[int], torch.Tensor]]:
    """Tokens and log-probabilities of `generate`, of a model whose weights were replaced by their rounded values.

    Inputs of these layers, too, if that is wanted.
    """
    model = LlavaForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and is_quantizable(module):
            rounded, factors = round_rows(module.weight)
            module.weight.copy_(rounded * factors[:, None])
            if inputs_too:
                module.register_forward_pre_hook(lambda _, given_inputs: rounded_inputs(given_inputs[0]))
    processor, wanted = AutoProcessor.from_pretrained(path), []
    for prompt, size in zip(PROMPTS, SIZES, strict=True):
        inputs = processor(images=random_image(*size, 1), text=prompt, return_tensors="pt")
        output = model.generate(
            **inputs, max_new_tokens=8, do_sample=False, return_dict_in_generate=True, output_scores=True
        )
        tokens = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        wanted.append((tokens, torch.stack([scores[0].log_softmax(-1) for scores in output.scores])))
    return wanted


@pytest.mark.parametrize("options", KERNELS.values(), ids=KERNELS)
def test_a_model_is_the_one_of_rounded_weights(
    options: dict[str, Any], tiny_llava: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With all linear layers rounded, in the encoder, too; alone and in a batch."""
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=4, ignore_eos=True)
    requests = [
        {"prompt": prompt, "multi_modal_data": {"image": random_image(*size, 1)}}
        for prompt, size in zip(PROMPTS, SIZES, strict=True)
    ]
    with caplog.at_level(logging.INFO), LLM(str(tiny_llava), dtype="float32", quantization="int8", **options) as llm:
        together = llm.generate(requests, params, use_tqdm=False)
        alone = [llm.generate(request, params, use_tqdm=False)[0] for request in requests]
    assert ("widened whenever" if "fuse_layers" in options else "of 8 bits") in caplog.text
    inputs_too = "activation_dtype" in options
    assert ("inputs rounded to int8" in caplog.text) == inputs_too
    tolerance = 5e-2 if inputs_too else 2e-3  # an input may lie between two steps
    wanted_outputs = rounded_in_transformers(tiny_llava, inputs_too=inputs_too)
    for ours, again, (tokens, logprobs) in zip(together, alone, wanted_outputs, strict=True):
        output = ours.outputs[0]
        assert output.token_ids[: len(tokens)] == tokens
        assert again.outputs[0].token_ids == output.token_ids
        assert output.logprobs is not None
        for step, wanted in zip(output.logprobs[: len(tokens)], logprobs, strict=True):
            for token, found in step.items():
                assert abs(found.logprob - wanted[token].item()) < tolerance


def test_it_is_not_the_model_of_float32(tiny_llava: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1)
    first = []
    for options in ({}, {"quantization": "int8"}, {"quantization": "int8", "activation_dtype": "int8"}):
        with LLM(str(tiny_llava), dtype="float32", **options) as llm:
            output = llm.generate("USER: Hello ASSISTANT:", params, use_tqdm=False)[0].outputs[0]
            assert output.logprobs is not None
            first.append(next(iter(output.logprobs[0].values())).logprob)
    assert 0 < abs(first[0] - first[1]) < 0.3
    assert 0 < abs(first[1] - first[2]) < 0.3


def test_inputs_are_rounded_where_weights_are_integers_or_the_load_says_that_there_are_none(tiny_llava: Path) -> None:
    with pytest.raises(ConfigError, match=r"activation_dtype='int8' .*set quantization, or leave it out"):
        LLM(str(tiny_llava), activation_dtype="int8")
    with pytest.raises(ConfigError, match=r"activation_dtype must be one of auto, int8; got 'fp8'"):
        LLM(str(tiny_llava), quantization="int8", activation_dtype="fp8")


def test_other_types_are_refused(tiny_llava: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantization .*int8, .*'awq'; "):
        LLM(str(tiny_llava), quantization="awq")

"""Floats of few bits, plain integers and bitsandbytes' formats are read as the packages that write them read them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from bitsandbytes import functional
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from safetensors.torch import load_file, save_file
from torch import Tensor

from corellm import LLM
from corellm.errors import CheckpointError
from corellm_kernels.grouped_linear import GroupedWeight
from corellm_quantization.published import published
from extensions.quantization.tests.published_checkpoints import write
from extensions.quantization.tests.test_published import IMAGE, PARAMS, PROMPT, is_rounded, of_transformers


class Written(NamedTuple):
    """A weight's tensors, and what its package makes of them in float32."""

    tensors: Mapping[str, Tensor]
    widened: Tensor


class Kind(NamedTuple):
    """A format: what writes a weight, and what the checkpoint states."""

    write: Callable[[Tensor], Written]
    stated: Mapping[str, Any]


def compressed(form: str, **weights: Any) -> Kind:
    """A format of compressed-tensors, in which scales of 8 bits are written as 8 bits."""
    args = QuantizationArgs(**{"symmetric": True, "observer": "memoryless_minmax"} | weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    most = {"int": 127.0, "float": 448.0 if args.num_bits == 8 else 6.0}[args.type]

    def written(weight: Tensor) -> Written:
        n, k = weight.shape
        rows, columns = {
            "tensor": (n, k), "channel": (1, k), "block": args.block_structure,
        }.get(args.strategy, (1, args.group_size))  # fmt: skip
        padded = torch.nn.functional.pad(weight, (0, -k % columns, 0, -n % rows))
        tiles = padded.view(padded.shape[0] // rows, rows, -1, columns)
        scale = tiles.abs().amax((1, 3)) / most
        if args.strategy == "tensor":
            scale = scale.view(1)
        given = {"weight": weight, "weight_scale": scale}
        if form.startswith("mx"):
            given["weight_scale"] = scale.log2().ceil().exp2()
        if form.startswith("nvfp4"):
            given["weight_global_scale"] = (448 / scale.max()).view(1)
            given["weight_scale"] = (scale * given["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        if not args.symmetric:
            given["weight_scale"] = (tiles.amax((1, 3)) - tiles.amin((1, 3))) / 255
            given["weight_zero_point"] = (-128 - tiles.amin((1, 3)) / given["weight_scale"]).round().to(torch.int8)
        oracle = fake_quantize(
            weight, given["weight_scale"], given.get("weight_zero_point"), args,
            global_scale=given.get("weight_global_scale"),
        )  # fmt: skip
        tensors = BaseCompressor.load_from_registry(form).compress(given, scheme)
        if form == "mxfp8-quantized":
            tensors["weight_scale"] = (given["weight_scale"].log2() + 127).to(torch.uint8)
        return Written(tensors, oracle)

    kept = json.loads(scheme.model_dump_json())
    return Kind(written, {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": kept}})


def bitsandbytes(kind: str, *, nested: bool) -> Kind:
    """Its formats of 4 bits."""

    def written(weight: Tensor) -> Written:
        packed, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
        tensors = {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
        return Written(tensors | {"weight": packed}, functional.dequantize_4bit(packed, state))

    return Kind(written, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind})


def bitsandbytes_8_bits(weight: Tensor) -> Written:
    """Its format of 8 bits."""
    integers, most, _ = functional.int8_vectorwise_quant(weight.half())
    return Written(
        {"weight": integers, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)},
        functional.int8_vectorwise_dequant(integers, most),
    )


FP8 = partial(compressed, type="float", num_bits=8)
INTEGERS = partial(compressed, "int-quantized", type="int", num_bits=8)
KINDS = {
    "FP8, a scale": FP8("float-quantized", strategy="tensor"),
    "FP8, rows": FP8("float-quantized", strategy="channel"),
    "FP8, blocks": FP8("float-quantized", strategy="block", block_structure=[32, 48]),
    "FP8, unnamed": FP8("naive-quantized", strategy="channel"),
    "MXFP8": FP8("mxfp8-quantized", strategy="group", group_size=32),
    "NVFP4": compressed("nvfp4-pack-quantized", type="float", num_bits=4, strategy="tensor_group", group_size=16),
    "MXFP4": compressed("mxfp4-pack-quantized", type="float", num_bits=4, strategy="group", group_size=32),
    "W8A8": INTEGERS(strategy="channel"),
    "W8A8, a scale": INTEGERS(strategy="tensor"),
    "W8A8, asymmetric": INTEGERS(strategy="channel", symmetric=False),
    "NF4": bitsandbytes("nf4", nested=False),
    "NF4, scales rounded": bitsandbytes("nf4", nested=True),
    "FP4": bitsandbytes("fp4", nested=False),
    "LLM.int8": Kind(bitsandbytes_8_bits, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
}


def beside(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is kept of a weight, under names beside it."""
    names = {name: re.sub(r"^weight\.(\w+).*", r"weight_\1", name) for name in tensors}
    return {names[name]: tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_weights_are_those_of_the_package(kind: Kind) -> None:
    weight = torch.randn(80, 128, generator=torch.Generator().manual_seed(0))
    tensors, wanted = kind.write(weight)
    found = published(kind.stated)
    assert found is not None
    assert found.marker in beside(tensors)
    read = found.read(beside(tensors))
    read = read.widened() if isinstance(read, GroupedWeight) else read
    torch.testing.assert_close(read, wanted.float(), rtol=2e-5, atol=1e-6)  # scales of 32 bits are kept to 24
    assert 0 < (wanted - weight).norm() < 0.2 * weight.norm()


def by_transformers(weight: Tensor) -> Written:
    """What `fp8` means: blocks of 32 x 32."""
    tensors, wanted = FP8("float-quantized", strategy="block", block_structure=[32, 32]).write(weight)
    return Written({"weight": tensors["weight"], "weight_scale_inv": tensors["weight_scale"]}, wanted)


CHECKPOINTS = {
    "FP8, blocks": "x Linear: weights of compressed-tensors float-quantized are widened to torch.float32",
    "NVFP4": "x Linear: weights of compressed-tensors nvfp4-pack-quantized are widened to torch.float32",
    "W8A8": "packed weights of 8 bits",
    "NF4, scales rounded": "x Linear: weights of bitsandbytes are widened to torch.float32",
    "LLM.int8": "packed weights of 8 bits",
    "FP8 of transformers": "",
}
OTHERS = {
    "FP8 of transformers": Kind(by_transformers, {"quant_method": "fp8", "weight_block_size": [32, 32]}),
}


@pytest.mark.parametrize(("name", "said"), CHECKPOINTS.items(), ids=CHECKPOINTS)
def test_a_checkpoint_is_the_model_of_its_weights(
    name: str, said: str, tiny_llava: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = (KINDS | OTHERS)[name]
    path = write(tiny_llava, tmp_path / "packed", is_rounded, kind.write, lambda made: made.tensors, kind.stated)
    plain = write(tiny_llava, tmp_path / "plain", is_rounded, kind.write, None, None)
    tokens, logprobs = of_transformers(plain)
    request = {"prompt": PROMPT, "multi_modal_data": {"image": IMAGE}}
    with caplog.at_level(logging.INFO), LLM(str(path), dtype="float32") as llm:
        output = llm.generate(request, PARAMS, use_tqdm=False)[0].outputs[0]
    assert output.token_ids == tokens
    assert output.logprobs is not None
    for step, wanted in zip(output.logprobs, logprobs, strict=True):
        assert all(abs(found.logprob - wanted[token].item()) < 2e-3 for token, found in step.items())
    assert said in caplog.text


def test_broken_tensors_are_refused_by_the_layers_name(tiny_llava: Path, tmp_path: Path) -> None:
    def refused(name: str, last: str, change: Callable[[Tensor], Tensor | None], message: str) -> None:
        kind = KINDS[name]
        path = write(tiny_llava, tmp_path / message, is_rounded, kind.write, lambda made: made.tensors, kind.stated)
        tensors = load_file(path / "model.safetensors")
        name = next(key for key in tensors if key.endswith(f"q_proj.{last}") and "language_model" in key)
        changed = change(tensors.pop(name))
        save_file(
            tensors if changed is None else {name: changed, **tensors}, path / "model.safetensors", {"format": "pt"}
        )
        with pytest.raises(CheckpointError, match=f"q_proj: .*{message}"):
            LLM(str(path))

    refused("FP8, rows", "weight_scale", lambda scale: scale[:3].clone(), r"scales \(3, 1\) of a weight")
    refused("FP8, rows", "weight", lambda weight: weight.float(), "weights of torch.float32; floats of 8 bits")
    refused("NVFP4", "weight_global_scale", lambda _: None, "lacks 'weight_global_scale'")
    state = "weight.quant_state.bitsandbytes__nf4"
    refused("NF4", state, lambda _: torch.tensor([123, 0], dtype=torch.uint8), "its quant_state is not what")
    told = b'{"shape": [64, 64], "blocksize": 0}'
    refused("NF4", state, lambda _: torch.tensor([*told], dtype=torch.uint8), "blocks of 0 values")
    refused("NF4", "weight", lambda weight: weight[:-8].clone(), r"values of a weight \(")
    refused("FP8, rows", "weight", lambda weight: weight.flatten(), "zip")
    refused("W8A8", "weight", lambda weight: weight.float(), "weights of torch.float32; integers of 8 bits")

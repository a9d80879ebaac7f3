"""Checkpoints of torchao and HQQ: weights are those that were laid out, and broken ones are refused by name.

Layouts are written here, element by element, as both packages document them: either would be imported by transformers
in every test if it were installed. Both gave the same weights when this was written (torchao 0.18, HQQ 0.2.8).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from corellm import LLM
from corellm.errors import CheckpointError
from corellm_kernels.grouped_linear import GroupedWeight
from corellm_quantization.published import published
from corellm_quantization.torchao import torchao_layers
from extensions.quantization.tests.published_checkpoints import rounded, write
from extensions.quantization.tests.test_published import IMAGE, PARAMS, PROMPT, is_rounded, of_transformers

TORCHAO: Mapping[str, Any] = {"quant_method": "torchao", "quant_type": {"default": {"_type": "any"}}}
HQQ: Mapping[str, Any] = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {}}, "skip_modules": []}


class Written(NamedTuple):
    """A weight's tensors, and what they are in float32."""

    tensors: Mapping[str, Tensor]
    widened: Tensor


class Kind(NamedTuple):
    """A layout: what writes a weight, what the header says of it, and whether it stays in integers."""

    write: Callable[[Tensor], Written]
    note: str | None
    integers: bool

    @property
    def stated(self) -> Mapping[str, Any]:
        """What the checkpoint states."""
        return HQQ if self.note is None else TORCHAO


def note(kind: str, block: list[int], **data: Any) -> str:
    """What torchao writes into a header."""
    return json.dumps({"_type": kind, "_data": {"block_size": block, **data}, "_tensor_data_names": ["qdata", "scale"]})


def target(bits: int) -> dict[str, Any]:
    """The type of integers."""
    return {"target_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"}}


def in_bytes(weight: Tensor, bits: int, group: int, *, halves: bool = False, scaled: bool = False) -> Written:
    """Torchao's integers, one in each byte; with fractions of zeros, or inputs that are multiplied first."""
    made = rounded(weight, bits, group)
    middle = 2 ** (bits - 1)
    zeros, widened = made.zeros - middle, made.widened
    tensors = {"_weight_qdata": (made.integers - middle).to(torch.int8), "_weight_scale": made.scales}
    if halves:
        widened = widened - made.scales.float()[:, made.group_of] / 2
        tensors["_weight_zero_point"] = zeros.half() + 0.5
    else:
        tensors["_weight_zero_point"] = zeros.to(torch.int8)
    if scaled:
        tensors["_weight_act_pre_scale"] = torch.linspace(0.5, 2, weight.shape[1])
        widened = widened * tensors["_weight_act_pre_scale"]
    return Written(tensors, widened)


def in_half_bytes(weight: Tensor) -> Written:
    """Torchao's integers of 4 bits in plain order: a group's zero is the float that its integer 0 is."""
    made = rounded(weight, 4, 32)
    signed = (made.integers - 8) & 15
    zero = (8 - made.zeros) * made.scales.float()
    packed = (signed[:, ::2] | signed[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    tensors = {"_weight_qdata": packed, "_weight_scale": made.scales.T, "_weight_zero_point": zero.T}
    return Written({name: tensor.contiguous() for name, tensor in tensors.items()}, made.widened)


def in_floats(weight: Tensor) -> Written:
    """Torchao's floats of 8 bits, a scale for 64 inputs."""
    scale = weight.view(len(weight), -1, 64).abs().amax(2) / 448
    spread = scale.repeat_interleave(64, 1)
    floats = (weight / spread).to(torch.float8_e4m3fn)
    return Written({"_weight_qdata": floats, "_weight_scale": scale}, floats.float() * spread)


def of_hqq(weight: Tensor, bits: int, group: int, axis: int, *, as_float: bool = False) -> Written:
    """HQQ's layout: groups are rows (axis 1) or columns (axis 0); parts of all rows share a byte, or 32 bits."""
    n, k = weight.shape
    values = weight.reshape(-1, group) if axis == 1 else weight.reshape(group, -1)
    low, high = values.amin(axis, keepdim=True), values.amax(axis, keepdim=True)
    scale = (high - low) / (2**bits - 1)
    zero = -low / scale
    integers = (values / scale + zero).round().clamp(0, 2**bits - 1).int()
    per_word = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}[bits]
    rows = -(-len(integers) // per_word)
    padded = torch.nn.functional.pad(integers, (0, 0, 0, rows * per_word - len(integers)))
    words = sum(padded[part * rows : (part + 1) * rows] << bits * (per_word - 1 - part) for part in range(per_word))
    assert isinstance(words, Tensor)
    packed = words if bits == 3 else words.to(torch.uint8)
    numbers = {"nbits": bits, "group_size": group, "axis": axis}
    tensors = {name: torch.tensor(number, dtype=torch.int32) for name, number in numbers.items()}
    tensors |= {"W_q": packed.view(torch.float16) if as_float else packed, "scale": scale, "zero": zero}
    tensors |= {"shape": torch.tensor([n, k]), "packing": torch.tensor([ord(letter) for letter in "4bit_u8"]).byte()}
    return Written(tensors, ((integers - zero) * scale).view(n, k))


INTX = "IntxUnpackedToInt8Tensor"
KINDS = {
    "torchao int8": Kind(partial(in_bytes, bits=8, group=-1), note("Int8Tensor", [1, 64]), True),
    "torchao int4 in groups": Kind(partial(in_bytes, bits=4, group=32), note(INTX, [1, 32], **target(4)), True),
    "torchao int8 in groups": Kind(partial(in_bytes, bits=8, group=16), note(INTX, [1, 16], **target(8)), True),
    "torchao, half zeros": Kind(
        partial(in_bytes, bits=4, group=32, halves=True), note(INTX, [1, 32], **target(4)), True
    ),
    "torchao, small groups": Kind(partial(in_bytes, bits=4, group=8), note(INTX, [1, 8], **target(4)), False),
    "torchao, inputs scaled": Kind(
        partial(in_bytes, bits=8, group=-1, scaled=True), note("Int8Tensor", [1, 64]), False
    ),
    "torchao int4, plain": Kind(in_half_bytes, note("Int4Tensor", [1, 32]), True),
    "torchao float8": Kind(in_floats, note("Float8Tensor", [1, 64], dtype=None), False),
    "HQQ 4 bits": Kind(partial(of_hqq, bits=4, group=64, axis=1), None, True),
    "HQQ 4 bits, as floats": Kind(partial(of_hqq, bits=4, group=32, axis=1, as_float=True), None, True),
    "HQQ 8 bits": Kind(partial(of_hqq, bits=8, group=64, axis=1), None, True),
    "HQQ 3 bits": Kind(partial(of_hqq, bits=3, group=64, axis=1), None, True),
    "HQQ 2 bits": Kind(partial(of_hqq, bits=2, group=16, axis=1), None, True),
    "HQQ 1 bit": Kind(partial(of_hqq, bits=1, group=8, axis=1), None, False),
    "HQQ 4 bits, columns": Kind(partial(of_hqq, bits=4, group=64, axis=0), None, False),
    "HQQ 3 bits, columns": Kind(partial(of_hqq, bits=3, group=64, axis=0), None, False),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_weights_are_those_that_were_laid_out(kind: Kind) -> None:
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    tensors, wanted = kind.write(weight)
    found = published(kind.stated)
    assert found is not None
    beside = {name.replace("_weight_", "weight_"): tensor for name, tensor in tensors.items()}
    assert found.marker in beside
    read = (found.read if kind.note is None else torchao_layers(kind.note))(beside)
    assert isinstance(read, GroupedWeight) == kind.integers
    torch.testing.assert_close(
        read.widened() if isinstance(read, GroupedWeight) else read, wanted, rtol=1e-5, atol=1e-5
    )


def write_kind(name: str, source: Path, to: Path) -> Path:
    """Write the checkpoint of a kind."""
    kind = KINDS[name]
    return write(source, to, is_rounded, kind.write, lambda made: made.tensors, kind.stated, kind.note)


@pytest.mark.parametrize("name", ["torchao int4 in groups", "torchao float8", "HQQ 4 bits"])
def test_a_checkpoint_is_the_model_of_its_weights(
    name: str, tiny_llava: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = KINDS[name]
    path = write_kind(name, tiny_llava, tmp_path / "packed")
    tokens, logprobs = of_transformers(write(tiny_llava, tmp_path / "plain", is_rounded, kind.write, None, None))
    request = {"prompt": PROMPT, "multi_modal_data": {"image": IMAGE}}
    with caplog.at_level(logging.INFO), LLM(str(path), dtype="float32") as llm:
        output = llm.generate(request, PARAMS, use_tqdm=False)[0].outputs[0]
        beside = llm.generate([request, PROMPT.replace("<image>", "")], PARAMS, use_tqdm=False)[0].outputs[0]
    assert output.token_ids == tokens
    assert output.logprobs is not None
    for step, wanted in zip(output.logprobs, logprobs, strict=True):
        assert all(abs(found.logprob - wanted[token].item()) < 2e-3 for token, found in step.items())
    assert (beside.token_ids, beside.logprobs) == (output.token_ids, output.logprobs)  # bit for bit
    assert ("packed weights of 4 bits" if kind.integers else "weights of torchao are widened to") in caplog.text


def test_broken_checkpoints_are_refused_by_the_layers_name(tiny_llava: Path, tmp_path: Path) -> None:
    paths = {
        name: write_kind(name, tiny_llava, tmp_path / name)
        for name in ("torchao int8", "torchao int4, plain", "torchao float8", "HQQ 4 bits")
    }

    def refused(
        name: str, last: str, change: Callable[[Tensor], Tensor | None], message: str, said: str | None = None
    ) -> None:
        file = paths[name] / "model.safetensors"
        before = file.read_bytes()
        tensors = load_file(file)
        with safe_open(file, framework="pt") as opened:
            notes = dict(opened.metadata())
        key = next(key for key in tensors if key.endswith(f"q_proj.{last}") and "language_model" in key)
        changed = change(tensors.pop(key))
        weight = key.removesuffix(last) + "weight"
        if said is not None:
            notes[weight] = said
        save_file(tensors if changed is None else {key: changed, **tensors}, file, notes)
        with pytest.raises(CheckpointError, match=f"q_proj: .*{message}"):
            LLM(str(paths[name]))
        file.write_bytes(before)

    def same(tensor: Tensor) -> Tensor:
        return tensor

    refused("torchao int8", "_weight_scale", lambda _: None, "the checkpoint lacks 'weight_scale'")
    refused("torchao int8", "_weight_scale", lambda scale: scale[:3].clone(), "invalid|scales")
    refused("torchao int8", "_weight_qdata", lambda data: data[:, :-8].clone(), "a weight|scales")
    refused("torchao int8", "_weight_qdata", lambda data: data.float(), "of torch.float32; rows of int8")
    refused(
        "torchao int8", "_weight_qdata", same, "with weights in 'NVFP4Tensor'; Int8Tensor", note("NVFP4Tensor", [1])
    )
    refused("torchao int8", "_weight_qdata", same, r"none of its own: .*block_size \[0, 8\]", note(INTX, [0, 8]))
    refused("torchao int8", "_weight_qdata", same, "note of the weight is none of its own", "[1]")
    refused("torchao int8", "_weight_qdata", same, "integers of 'int9'", note(INTX, [1, 64], **target(9)))
    refused("torchao int8", "_weight_qdata", same, "expected 4 bits", note(INTX, [1, 64], **target(4)))
    refused("torchao int4, plain", "_weight_zero_point", lambda zero: zero[:1].clone(), r"zeros \(1, 64\)")
    refused("torchao int4, plain", "_weight_qdata", lambda data: data.float(), "rows of bytes can be read")
    refused("torchao float8", "_weight_qdata", lambda data: data.float(), "floats of 8 bits can be read")
    refused("HQQ 4 bits", "W_q", lambda packed: packed[:-1].clone(), r"packed integers, expected \(")
    refused("HQQ 4 bits", "W_q", lambda packed: packed.int(), "integers of 4 bits in torch.int32")
    refused("HQQ 4 bits", "shape", lambda shape: shape * 2, "packed integers, expected|groups of")
    refused("HQQ 4 bits", "shape", lambda shape: shape.float(), "expected 2 integers")
    refused("HQQ 4 bits", "nbits", lambda bits: bits + 3, "weights of 7 bits")
    refused("HQQ 4 bits", "group_size", lambda group: group * 0, "groups of 0")
    refused("HQQ 4 bits", "scale", lambda scale: scale[:-1].clone(), "of 64 groups")


def test_what_a_header_does_not_name_is_refused(tiny_llava: Path, tmp_path: Path) -> None:
    kind = KINDS["torchao int8"]
    path = write(tiny_llava, tmp_path / "packed", is_rounded, kind.write, lambda made: made.tensors, kind.stated)
    with pytest.raises(CheckpointError, match="header does not say of which kind its tensors are"):
        LLM(str(path))
    with pytest.raises(CheckpointError, match="hqq with scales that are quantized"):
        published(HQQ | {"quant_config": {"scale_quant_params": {"nbits": 8}}})

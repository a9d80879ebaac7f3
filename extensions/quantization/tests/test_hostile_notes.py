"""What checkpoints state of their weights, damaged in every place: a weight comes of it, or an error of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError
from corellm_quantization.published import published
from corellm_quantization.reading import _layer, _PublishedLinear, _read
from extensions.quantization.tests import test_published, test_torchao_and_hqq, test_widened

DEEP = "[" * 900 + "]" * 900
TOO_DEEP = "[" * 100_000
HOSTILE = (
    None, True, False, -1, 0, 1, 3, 24, 10**9, 10**30, 1.5, float("nan"), "", "x" * 10_000, "é", [], [4], ["a", None],
    [10**30, -1], {}, {"a": 1}, {"weights": 5}, json.loads(DEEP),
)  # fmt: skip
"""In the place of any value."""
WEIGHT = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
TORCHAO = {name: kind for name, kind in test_torchao_and_hqq.KINDS.items() if kind.note is not None}
BITSANDBYTES = {name: kind for name, kind in test_widened.KINDS.items() if "load_in_4bit" in kind.stated}


def damaged(value: Any) -> Iterator[Any]:
    """Every value that differs in one place: another thing is there, or nothing."""
    yield from HOSTILE
    if isinstance(value, dict):
        for name, part in value.items():
            yield {key: other for key, other in value.items() if key != name}
            yield from ({**value, name: other} for other in damaged(part))
    if isinstance(value, list):
        for place, part in enumerate(value):
            yield value[:place] + value[place + 1 :]
            yield from ([*value[:place], other, *value[place + 1 :]] for other in damaged(part))


def beside(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names that a layer has them under."""
    return {
        name.replace("_weight_", "weight_").replace("weight.", "weight_").partition(".bitsandbytes__")[0]: tensor
        for name, tensor in tensors.items()
    }


def read(stated: Mapping[str, Any], tensors: Mapping[str, Tensor], note: str | None = None) -> None:
    """Read a layer as a checkpoint's are; any error but those that are meant is the test's."""
    with suppress(CheckpointError):
        if (form := published(stated)) is not None:
            linear = nn.Linear(64, 32, bias=False, device="meta")
            layer = _layer(
                "a.layer", _PublishedLinear(linear, beside(tensors), _read("a.layer", form, note)), widen=False
            )
            assert (layer.out_features, layer.in_features) == (32, 64)


def statements() -> Iterator[tuple[str, Mapping[str, Any], Callable[[], Mapping[str, Tensor]]]]:
    """What checkpoints of each format state, and what makes a layer's tensors."""
    for name, packed in test_published.KINDS.items():
        yield name, packed.stated, lambda kind=packed: kind.layout(kind.round_weight(WEIGHT))
    for name, wide in test_widened.KINDS.items():
        yield name, wide.stated, lambda kind=wide: kind.write(WEIGHT).tensors
    for name in ("HQQ 4 bits", "torchao int8"):
        kind = test_torchao_and_hqq.KINDS[name]
        yield name, kind.stated, lambda kind=kind: kind.write(WEIGHT).tensors


@pytest.mark.parametrize(
    ("stated", "make"), [case[1:] for case in statements()], ids=[case[0] for case in statements()]
)
def test_a_damaged_statement_is_an_error_of_ours_or_a_weight(
    stated: Mapping[str, Any], make: Callable[[], Mapping[str, Tensor]]
) -> None:
    tensors = make()
    for changed in damaged(json.loads(json.dumps(stated))):
        if isinstance(changed, dict):  # others are no statement
            read({**changed, "quant_method": stated["quant_method"]}, tensors)


@pytest.mark.parametrize("name", TORCHAO)
def test_a_damaged_note_of_torchao_is_an_error_of_ours_or_a_weight(name: str) -> None:
    kind = TORCHAO[name]
    assert kind.note is not None
    tensors = kind.write(WEIGHT).tensors
    for changed in damaged(json.loads(kind.note)):
        read(kind.stated, tensors, json.dumps(changed))
    for note in ("", "{", TOO_DEEP, DEEP):
        with pytest.raises(CheckpointError, match=r"a\.layer: torchao's note of the weight is none of its own"):
            _read("a.layer", published(kind.stated), note)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BITSANDBYTES)
def test_a_damaged_state_of_bitsandbytes_is_an_error_of_ours_or_a_weight(name: str) -> None:
    kind = BITSANDBYTES[name]
    tensors = beside(kind.write(WEIGHT).tensors)
    state = json.loads(bytes(tensors["weight_quant_state"].tolist()))
    notes = [*map(json.dumps, damaged(state)), TOO_DEEP, "{"]
    for note in notes:
        read(kind.stated, tensors | {"weight_quant_state": torch.tensor([*note.encode()], dtype=torch.uint8)})


def test_damaged_numbers_of_hqq_are_an_error_of_ours_or_a_weight() -> None:
    kind = test_torchao_and_hqq.KINDS["HQQ 4 bits"]
    tensors = kind.write(WEIGHT).tensors
    for name in ("shape", "group_size", "axis", "nbits"):
        for number in (-1, 0, 1, 3, 63, 2**31, 2**62):
            for form in (
                torch.tensor(number),
                torch.tensor([number, number]),
                torch.tensor([64, number]),
                torch.empty(0),
            ):
                read(kind.stated, tensors | {name: form})


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, r"config_groups \[1\]; an object is expected"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 7}}, "with a 7; an object is expected"),
        ({"quant_method": "hqq", "quant_config": ["x"]}, r"hqq with quant_config \['x'\]; an object is expected"),
        ({"quant_method": "gptq", "bits": json.loads(DEEP)}, r"weights of \[\[\[.*\.\.\..* bits; 4 and 8 can be"),
        ({"quant_method": "awq", "bits": 4, "version": {"a": 1}}, r"version \{'a': 1\} of 4 bits; AWQ's 'gemm'"),
    ],
)  # fmt: skip
def test_the_error_names_the_value_and_the_way_out(stated: Mapping[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"quantization_config: .*{message}") as caught:
        published(stated)
    assert "take the checkpoint in bfloat16" in str(caught.value)
    assert len(str(caught.value)) < 400

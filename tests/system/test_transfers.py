"""What goes to a device arrives there whole; the device is torch's `meta`, which any machine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from corellm.system.transfers import upload_all

META = torch.device("meta")


@dataclass(frozen=True)
class Inner:
    numbers: Tensor
    count: int = 3


@dataclass(frozen=True)
class Outer:
    own: Tensor
    inner: Inner
    by_name: Mapping[str, Inner]


def test_all_tensors_of_a_dataclass_are_moved_and_what_it_has_twice_stays_one() -> None:
    one, other = Inner(torch.arange(3)), Inner(torch.arange(4), 4)
    moved = upload_all(Outer(one.numbers, one, {"a": one, "b": other, "c": other}), META)
    assert {tensor.device for tensor in (moved.own, moved.inner.numbers, moved.by_name["b"].numbers)} == {META}
    assert moved.own is moved.inner.numbers
    assert moved.by_name["a"] is moved.inner
    assert moved.by_name["b"] is moved.by_name["c"]
    assert (moved.inner.count, moved.by_name["b"].count, len(moved.by_name["b"].numbers)) == (3, 4, 4)


def test_on_the_cpu_it_is_the_same() -> None:
    given = Inner(torch.arange(3))
    assert upload_all(given, torch.device("cpu")) is given

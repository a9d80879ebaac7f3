"""A part around another one changes nothing but what it overrides."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest

from corellm.errors import ContractError
from corellm.scheduling.part_around import PartAround
from corellm.scheduling.request_part import PLAIN, RequestPart
from corellm.scheduling.spans import Spans
from tests.modelling.low_rank import AdapterOf
from tests.scheduling.fake_worker import make_request

METHODS = [name for name, _ in inspect.getmembers(RequestPart, inspect.isfunction) if not name.startswith("_")]


class Inner(RequestPart):
    """Returns what it was asked."""

    def __getattribute__(self, name: str) -> Any:
        if name == "fresh":
            return Inner
        return (lambda *args: (name, args)) if name in METHODS else super().__getattribute__(name)


@pytest.mark.parametrize("name", METHODS)
def test_the_inner_part_is_asked(name: str) -> None:
    """Every method that parts have, with its arguments."""
    args: Sequence[int] = range(len(inspect.signature(getattr(RequestPart, name)).parameters) - 1)
    part = PartAround(Inner())
    found = getattr(part, name)(*args)
    if name == "fresh":
        assert isinstance(found.inner, Inner)
        assert found.inner is not part.inner
    else:
        assert found == (None if name in ("count", "restart") else (name, tuple(args)))


def test_the_part_of_a_prompt_that_takes_no_items_is_no_inner_part() -> None:
    """Its blocks look for the part itself: a request would end the engine."""
    encoders = type("Encoders", (RequestPart,), {"items_in_prompt": False})
    with pytest.raises(ContractError, match="AdapterOf cannot be around Encoders"):
        AdapterOf(encoders(), "first", b"", 1)


def test_spans_stay_beside_an_adapter() -> None:
    """The worker is told both, and hashes depend on both."""
    spans = Spans([(2, 5)])
    request = make_request("r", [9] * 12)
    part = AdapterOf(spans, "first", b"", 1)
    assert part.for_worker() == {"spans": [(2, 5)], "adapter": "first"}
    keys = [
        tuple(each.hash_keys(request, 0, 8)) for each in (PLAIN, spans, part, AdapterOf(spans, "second", b"other", 1))
    ]
    assert len(set(keys)) == 4
    assert keys[2][: len(keys[1])] == keys[1]

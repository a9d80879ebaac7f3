"""Which cluster is joined: that which was named, by an argument or by Ray's own variable, else a new one."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from corellm.errors import ConfigError
from corellm_ray.cluster import joined


@pytest.mark.parametrize(
    ("given", "variable", "taken"),
    [
        (None, None, "local"),
        (None, "", "local"),
        (None, "head:6379", "head:6379"),
        ("local", "head:6379", "local"),
        ("auto", None, "auto"),
        ("other:6379", "head:6379", "other:6379"),
    ],
)
def test_no_cluster_is_joined_that_was_not_named(
    monkeypatch: pytest.MonkeyPatch, given: str | None, variable: str | None, taken: str
) -> None:
    """And the sizes of a new one are not asked of one that is there: Ray refuses them."""
    asked: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    monkeypatch.setattr(ray, "init", lambda address, **options: asked.append((address, options)))
    with joined(given, num_cpus=2, object_store_memory=80 << 20) as is_ours:
        assert is_ours == (taken == "local")
    ((address, options),) = asked
    assert address == taken
    assert ("num_cpus" in options) == is_ours


def test_a_cluster_that_is_not_there_is_said_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, **_: object) -> None:
        raise ConnectionError("no answer")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ConfigError, match="there is no Ray cluster at head:6379: no answer"), joined("head:6379"):
        pytest.fail("it was joined")

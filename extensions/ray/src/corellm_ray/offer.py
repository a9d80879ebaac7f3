"""Replicas as an engine that `corellm serve` may have behind it. Imports neither torch nor Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corellm.server_offers import EngineOffer
from corellm_ray.options import ReplicaOptions

if TYPE_CHECKING:
    from corellm.serving import EngineClient


@contextmanager
def _opened(options: ReplicaOptions, engine_args: Mapping[str, Any]) -> Iterator[EngineClient]:
    from corellm_ray.deployment import replicas

    with replicas(options, engine_args) as client:
        yield client


OFFER = EngineOffer("replicas on Ray", ReplicaOptions, "replicas", _opened)
"""What `corellm serve` has with this distribution."""

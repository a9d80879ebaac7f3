"""Replicas as engines that `corellm serve` may have behind it, of one model or of several. Imports no torch and no Ray.

Several models share a cluster; each has an application of its own there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from corellm.errors import ConfigError
from corellm_ray.options import ReplicaOptions
from corellm_server.offers import EngineOffer, WantedEngine

if TYPE_CHECKING:
    from corellm.serving import EngineClient


@contextmanager
def _opened(wanted: Sequence[WantedEngine]) -> Iterator[list[EngineClient]]:
    all_options = options_of(wanted)
    from corellm_ray.cluster import joined  # isort: skip  # first: it sets what Ray reads when it is imported
    from corellm_ray.deployment import replicas

    with ExitStack() as stack:
        if len(wanted) > 1:  # else a model is refused before a cluster is started
            num_cpus = math.ceil(sum(options.most * options.replica_cpus for options in all_options))
            memory = max(options.object_store_memory for options in all_options)
            stack.enter_context(joined(all_options[0].ray_address, num_cpus=num_cpus, object_store_memory=memory))
        clients: list[EngineClient] = []
        for options, one in zip(all_options, wanted, strict=True):
            with one.named():
                clients.append(stack.enter_context(replicas(options, one.engine_args)))
        yield clients


def options_of(wanted: Sequence[WantedEngine]) -> list[ReplicaOptions]:
    """Return each model's options, with a name of its application that no other one has.

    Raises:
        ConfigError: two of them have one name, or clusters of their own.
    """
    given: list[ReplicaOptions] = [one.options for one in wanted]
    if len(given) == 1:
        return given
    if len({options.ray_address for options in given}) > 1:
        raise ConfigError("ray_address differs between models, and a server joins one cluster; set it beside `models`")
    apps = [one.options.replica_app or "corellm-" + re.sub(r"[^\w.-]", "-", one.name) for one in wanted]
    for app in apps:
        if apps.count(app) > 1:
            raise ConfigError(f"replica_app: {app!r:.100} is that of two models; give each its own")
    return [replace(options, replica_app=app) for options, app in zip(given, apps, strict=True)]


OFFER = EngineOffer("replicas on Ray", ReplicaOptions, "replicas", _opened)
"""What `corellm serve` has with this distribution."""

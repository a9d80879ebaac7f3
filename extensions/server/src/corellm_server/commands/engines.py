"""Which engine a command's requests go to: one of this machine, or another one that options ask for.

Knows offers; what they open is the extensions' own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from corellm.errors import ConfigError
from corellm.plugin.extensions import call_extensions
from corellm.server_offers import BatchOffer, EngineOffer

if TYPE_CHECKING:
    from corellm.serving import EngineClient, ProcessLLM

OpenEngine = Callable[[dict[str, Any]], "AbstractContextManager[EngineClient]"]


def engine_offers() -> list[EngineOffer]:
    """The engines that extensions offer in place of the one of this machine; the first are this distribution's."""
    offers = call_extensions("offer_engine_client", lambda offer: isinstance(offer, EngineOffer))
    return [offer for _, offer in offers]


def batch_offers() -> list[BatchOffer]:
    """Where extensions offer to have the requests of a file done."""
    offers = call_extensions("offer_batch_runner", lambda offer: isinstance(offer, BatchOffer))
    return [offer for _, offer in offers]


def engine_of(offers: Sequence[EngineOffer], offered: Sequence[Any]) -> OpenEngine:
    """What opens the engine by its arguments: an offered one that the options ask for, else one of this machine.

    Args:
        offers: all there are.
        offered: the options of each.

    Raises:
        ConfigError: the options ask for several.
    """
    wanted = [(offer, options) for offer, options in zip(offers, offered, strict=True) if offer.is_wanted(options)]
    if len(wanted) > 1:
        titles = " and ".join(offer.title for offer, _ in wanted)
        raise ConfigError(f"the options ask for {titles}; a server has one of them: leave out the others' options")
    for offer, options in wanted:
        return partial(offer.opened, options)
    return _own_engine


def _own_engine(engine_args: dict[str, Any]) -> contextlib.closing[ProcessLLM]:
    from corellm.serving import ProcessLLM

    return contextlib.closing(ProcessLLM(**engine_args))

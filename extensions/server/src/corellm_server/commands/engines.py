"""Which engine a command's requests go to: one of this machine, or another one that options ask for.

Knows offers; what they open is the extensions' own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.errors import ConfigError
from corellm.plugin.extensions import call_extensions
from corellm.server_offers import BatchOffer, EngineOffer
from corellm_server.data_parallel.offer import OFFER as SEVERAL

if TYPE_CHECKING:
    from corellm.serving import EngineClient, ProcessLLM

OpenEngine = Callable[[dict[str, Any]], "AbstractContextManager[EngineClient]"]
Offer = TypeVar("Offer", bound=EngineOffer | BatchOffer)


def engine_offers() -> list[EngineOffer]:
    """The engines that extensions offer in place of the one of this machine; the first are this distribution's."""
    offers = call_extensions("offer_engine_client", lambda offer: isinstance(offer, EngineOffer))
    return [offer for _, offer in offers]


def batch_offers() -> list[EngineOffer | BatchOffer]:
    """What may do the requests of a file: several engines, and what extensions offer."""
    offers = call_extensions("offer_batch_runner", lambda offer: isinstance(offer, BatchOffer))
    return [SEVERAL, *(offer for _, offer in offers)]


def engine_of(offers: Sequence[EngineOffer], offered: Sequence[Any]) -> OpenEngine:
    """What opens the engine by its arguments: an offered one that the options ask for, else one of this machine.

    Args:
        offers: all there are.
        offered: the options of each.

    Raises:
        ConfigError: the options ask for several; or some are of an engine that they do not ask for.
    """
    asked = asked_for(offers, offered)
    return _own_engine if asked is None else partial(asked[0].opened, asked[1])


def asked_for(offers: Sequence[Offer], offered: Sequence[Any]) -> tuple[Offer, Any] | None:
    """The offer that the options ask for, and its options; None where they ask for none.

    Args:
        offers: all there are.
        offered: the options of each.

    Raises:
        ConfigError: the options ask for several; or some are of an offer that they do not ask for.
    """
    asked: list[tuple[Offer, Any]] = []
    for offer, options in zip(offers, offered, strict=True):
        plain = offer.options()
        given = [f.name for f in fields(options) if getattr(options, f.name) != getattr(plain, f.name)]
        if offer.switch in given:
            asked.append((offer, options))
        elif given:
            raise ConfigError(f"{given[0]} needs {offer.switch}, which asks for {offer.title}; set both, or neither")
    if len(asked) > 1:
        both = " and ".join(f"{offer.switch} ({offer.title})" for offer, _ in asked)
        raise ConfigError(f"{both} do not go together; leave out one")
    return asked[0] if asked else None


def _own_engine(engine_args: dict[str, Any]) -> contextlib.closing[ProcessLLM]:
    from corellm.serving import ProcessLLM

    return contextlib.closing(ProcessLLM(**engine_args))

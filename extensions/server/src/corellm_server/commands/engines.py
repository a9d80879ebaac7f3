"""Which engines a command's requests go to: those of this machine, or others that options ask for.

Knows offers; what they open is the extensions' own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.errors import ConfigError
from corellm.plugin.extensions import call_extensions
from corellm_server.commands.models import ModelConfig
from corellm_server.data_parallel.offer import OFFER as SEVERAL
from corellm_server.offers import BatchOffer, CommandOffer, EngineOffer, WantedEngine

if TYPE_CHECKING:
    from corellm.serving import EngineClient

Offer = TypeVar("Offer", bound=CommandOffer)


def engine_offers() -> list[EngineOffer]:
    """The engines that extensions offer in place of the one of this machine; the first are this distribution's."""
    offers = call_extensions("offer_engine_client", lambda offer: isinstance(offer, EngineOffer))
    return [offer for _, offer in offers]


def batch_offers() -> list[CommandOffer]:
    """What may do the requests of a file: several engines, and what extensions offer."""
    offers = call_extensions("offer_batch_runner", lambda offer: isinstance(offer, BatchOffer))
    return [SEVERAL, *(offer for _, offer in offers)]


def opened_engines(
    offers: Sequence[EngineOffer], models: Mapping[str, ModelConfig]
) -> AbstractContextManager[dict[str, EngineClient]]:
    """What opens the engine of each model: an offered one that its options ask for, else one of this machine.

    Args:
        offers: all there are.
        models: by the name of each, as the engines are.

    Raises:
        ConfigError: options ask for several engines; or some are of an engine that they do not ask for.
    """
    groups: dict[str, tuple[EngineOffer, list[WantedEngine]]] = {}
    for name, model in models.items():
        asked = asked_for(offers, model.config.offered, implied=SEVERAL if len(models) > 1 else None)
        offer, options = asked or (SEVERAL, SEVERAL.options())
        groups.setdefault(offer.switch, (offer, []))[1].append(WantedEngine(name, options, model.engine_args))
    return _opened(list(groups.values()))


@contextlib.contextmanager
def _opened(groups: Sequence[tuple[EngineOffer, Sequence[WantedEngine]]]) -> Iterator[dict[str, EngineClient]]:
    clients: dict[str, EngineClient] = {}
    with contextlib.ExitStack() as stack:
        for offer, wanted in groups:
            opened = stack.enter_context(offer.opened(wanted))
            clients |= {one.name: client for one, client in zip(wanted, opened, strict=True)}
        yield clients


def asked_for(
    offers: Sequence[Offer], offered: Sequence[Any], *, implied: Offer | None = None
) -> tuple[Offer, Any] | None:
    """The offer that the options ask for, and its options; None where they ask for none.

    Args:
        offers: all there are.
        offered: the options of each.
        implied: the one whose options go without its switch.

    Raises:
        ConfigError: the options ask for several; or some are of an offer that they do not ask for.
    """
    asked: list[tuple[Offer, Any]] = []
    for offer, options in zip(offers, offered, strict=True):
        plain = offer.options()
        given = [f.name for f in fields(options) if getattr(options, f.name) != getattr(plain, f.name)]
        if offer.switch in given or (given and offer is implied):
            asked.append((offer, options))
        elif given:
            raise ConfigError(f"{given[0]} needs {offer.switch}, which asks for {offer.title}; set both, or neither")
    if len(asked) > 1:
        both = " and ".join(f"{offer.switch} ({offer.title})" for offer, _ in asked)
        raise ConfigError(f"{both} do not go together; leave out one")
    return asked[0] if asked else None

"""What corellm calls of this distribution. Imports neither torch nor Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm_server.offers import BatchOffer, EngineOffer


class OnRay:
    """Replicas behind `corellm serve`, and workers for `corellm batch`."""

    @hookimpl
    def offer_engine_client(self) -> EngineOffer:
        """Return the options of replicas, and what opens them."""
        from corellm_ray.offer import OFFER

        return OFFER

    @hookimpl
    def offer_batch_runner(self) -> BatchOffer:
        """Return the options of workers, and what runs a batch on them."""
        from corellm_ray.batches.offer import OFFER

        return OFFER

"""The models of a server, by the names that clients ask for: most servers have one.

Knows names, and which application answers a request; a model is a `Service`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from corellm.errors import EngineDeadError
from corellm_server.errors import no_model
from corellm_server.exchange import exchange_of
from corellm_server.service import Service


class Models:
    """The models.

    Args:
        first: what a request without a model's name asks; has what is the whole server's.
        others: further models.
    """

    def __init__(self, first: Service, *others: Service) -> None:
        self.first = first
        self._all = (first, *others)

    def __iter__(self) -> Iterator[Service]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that clients may ask for, those of adapters included."""
        return tuple(name for service in self._all for name in (*service.names, *service.adapters))

    @property
    def dead(self) -> EngineDeadError | None:
        """Why an engine stopped for good; None while all serve, or are started again."""
        return next((service.client.dead for service in self._all if service.client.dead is not None), None)

    @property
    def seconds_silent(self) -> float:
        """Seconds since the last sign of life of the engine that gave the newest one."""
        return min(service.client.seconds_silent for service in self._all)

    def find(self, name: str | None) -> Service:
        """The model of a name; the first one of none.

        Raises:
            ApiError: 404, there is no such model.
        """
        if name is None:
            return self.first
        found = [service for service in self._all if name in service.names or name in service.adapters]
        found = found or [service for service in self._all if name == service.loaded_as]
        if not found:
            raise no_model(name, self.names)
        return found[0]


class ByModel:
    """Has each request answered by the application of the model that it names.

    Args:
        models: of the server.
        apps: of each.
    """

    def __init__(self, models: Models, apps: Mapping[Service, ASGIApp]) -> None:
        self._models, self._apps = models, apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, whose body has been read.

        Raises:
            ApiError: 404, there is no such model; 503, it is full.
        """
        exchange = exchange_of(scope)
        name = exchange.body.get("model")
        service = self._models.find(name if isinstance(name, str) else None)
        exchange.model = service.names[0]
        if exchange.body:  # else it has no place in the server either
            service.enter(exchange)
        try:
            await self._apps[service](scope, receive, send)
        finally:
            service.in_flight.discard(exchange)

"""The application: the endpoints of a server's models behind the gate."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from corellm import __version__
from corellm_server.document import add_document_route
from corellm_server.endpoints.adapters import adapter_routes
from corellm_server.endpoints.audio import audio_routes
from corellm_server.endpoints.chat import chat_routes
from corellm_server.endpoints.completions import completion_routes
from corellm_server.endpoints.kept_responses import kept_response_routes
from corellm_server.endpoints.messages import message_routes
from corellm_server.endpoints.models import model_routes
from corellm_server.endpoints.pooling import pooling_routes
from corellm_server.endpoints.responses import response_routes
from corellm_server.endpoints.scores import score_routes
from corellm_server.endpoints.sleep import sleep_routes
from corellm_server.endpoints.status import status_routes
from corellm_server.endpoints.tokens import token_routes
from corellm_server.errors import ApiError, as_api_error
from corellm_server.exchange import Exchange, exchange_of
from corellm_server.gate import Gate
from corellm_server.logs import log_exchange
from corellm_server.models import ByModel, Models
from corellm_server.requests.body import wrong_body
from corellm_server.service import Service


def make_app(*services: Service) -> ASGIApp:
    """The whole ASGI application of a server: its models, the first one first, behind one gate."""
    models = Models(*services)
    apps = {service: _application(service, models) for service in models}
    routes, app = apps[models.first]
    if len(models) > 1:
        app = ByModel(models, {service: app for service, (_, app) in apps.items()})
    first, options = models.first, models.first.config.options

    def on_end(exchange: Exchange, route: str) -> None:
        first.metrics.ended(exchange, route)
        log_exchange(exchange, route)
        if first.tracing is not None:
            first.tracing.ended(exchange, route)

    gate: ASGIApp = Gate(app, routes, first.config, first.intake, on_end)
    if options.cors_origins:
        gate = CORSMiddleware(
            gate, allow_origins=options.cors_origins, allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"], expose_headers=["X-Request-Id", "Retry-After"],
        )  # fmt: skip
    return gate


def _application(service: Service, models: Models) -> tuple[list[BaseRoute], ASGIApp]:
    """The endpoints of one of the models, and what answers them."""
    app = FastAPI(
        title="corellm", version=__version__, openapi_url=None,
        description="Multimodal models, as OpenAI's API and as Anthropic's.",
    )  # fmt: skip
    add_document_route(app, models)
    declared = [*app.routes]
    of_a_model = (
        chat_routes, response_routes, kept_response_routes, message_routes, completion_routes, audio_routes,
        pooling_routes, score_routes, token_routes, adapter_routes, sleep_routes,
    )  # fmt: skip
    routers = [*(routes(service) for routes in of_a_model), model_routes(models), status_routes(models)]
    for router in routers:
        declared += router.routes
        app.include_router(router)
    app.add_exception_handler(RequestValidationError, _refuse_body)
    app.add_exception_handler(Exception, _fail)
    return declared, app


async def _refuse_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _response(request, wrong_body(error.errors()))


async def _fail(request: Request, error: Exception) -> Response:
    return _response(request, as_api_error(error))


def _response(request: Request, error: ApiError) -> Response:
    exchange = exchange_of(request.scope)
    exchange.failure = error
    return Response(exchange.told(error), error.status, error.headers, media_type="application/json")

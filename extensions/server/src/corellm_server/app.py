"""The application: endpoints of one service behind the gate."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
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
from corellm_server.requests.body import wrong_body
from corellm_server.service import Service


def make_app(service: Service) -> ASGIApp:
    """The whole ASGI application of a service."""
    options = service.config.options
    app = FastAPI(
        title="corellm", version=__version__, openapi_url=None,
        description="One multimodal model, as OpenAI's API and as Anthropic's.",
    )  # fmt: skip
    add_document_route(app, service)
    declared = [*app.routes]
    for routes in (
        chat_routes, response_routes, kept_response_routes, message_routes, completion_routes, audio_routes,
        pooling_routes, score_routes, token_routes, model_routes, adapter_routes, status_routes, sleep_routes,
    ):  # fmt: skip
        router = routes(service)
        declared += router.routes
        app.include_router(router)
    app.add_exception_handler(RequestValidationError, _refuse_body)
    app.add_exception_handler(Exception, _fail)

    def on_end(exchange: Exchange, route: str) -> None:
        service.metrics.ended(exchange, route)
        log_exchange(exchange, route)
        if service.tracing is not None:
            service.tracing.ended(exchange, route)

    gate: ASGIApp = Gate(app, declared, service.config, service.intake, on_end)
    if options.cors_origins:
        gate = CORSMiddleware(
            gate, allow_origins=options.cors_origins, allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"], expose_headers=["X-Request-Id", "Retry-After"],
        )  # fmt: skip
    return gate


async def _refuse_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _response(request, wrong_body(error.errors()))


async def _fail(request: Request, error: Exception) -> Response:
    return _response(request, as_api_error(error))


def _response(request: Request, error: ApiError) -> Response:
    exchange = exchange_of(request.scope)
    exchange.failure = error
    return Response(exchange.told(error), error.status, error.headers, media_type="application/json")

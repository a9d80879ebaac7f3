"""`corellm serve MODEL`: an HTTP server that OpenAI's and Anthropic's clients can use."""

from __future__ import annotations

import argparse
import gc
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from corellm.cli.fields import add_fields
from corellm.errors import CorellmError, MissingExtraError
from corellm.system.allocator import return_large_blocks
from corellm.system.log_format import set_up_log, start_line
from corellm_server.commands.absent_flags import without_absent
from corellm_server.commands.arguments import add_server
from corellm_server.commands.engines import engine_offers, opened_engines
from corellm_server.commands.models import ModelConfig, configured_models
from corellm_server.options import ServerConfig

if TYPE_CHECKING:
    from corellm.serving import EngineClient
    from corellm_server.fetching.fetcher import Fetcher
    from corellm_server.service import Service
    from corellm_server.tracing import Tracing

logger = logging.getLogger("corellm_server")

_HELP = """\
Serve a model over HTTP: /v1/chat/completions, /v1/responses, /v1/messages, /v1/completions, /v1/audio/transcriptions,
or of a model that pools /v1/embeddings, /classify, /score, /rerank and /pooling; and /v1/models, /tokenize,
/detokenize, /health, /ready, /version, /openapi.json and /metrics. Only this machine can reach the server, nothing is
fetched and no file is read for a request, unless options say so."""

_EPILOG = """\
examples:
  corellm serve demo
  corellm serve demo-video --port 9000 --max-model-len 2048
  corellm serve llava-hf/llava-1.5-7b-hf --host 0.0.0.0 --api-key-file keys.txt --max-num-seqs 32
  corellm serve demo --data-parallel-size 2     # two engines, each on half of the processors
  corellm serve demo --convert embed            # /v1/embeddings in place of chat
  corellm serve --config server.yaml            # options by name, `model:` among them, or `models:` with several

ask it:
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "demo", "messages": [{"role": "user", "content": "What is in the image?"}]}'
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve", help="serve a model over HTTP, as OpenAI's API", usage="corellm serve MODEL [OPTION ...]",
        description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default=argparse.SUPPRESS,
        help="a directory, a GGUF file, a hub name (owner/name), `demo` or `demo-video`",
    )  # fmt: skip
    add_server(parser, "server")
    for offer in engine_offers():
        add_fields(parser, offer.title, offer.options)
    parser.set_defaults(run=run, reword=_without_absent)


def _without_absent(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Leave out other servers' flags that have no effect; one that would have is an error."""
    known = {option for action in parser._actions for option in action.option_strings}
    kept, refusal = without_absent(words, known)
    if refusal:
        parser.error(refusal)
    return kept


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop; returns 1 if the engine died or hung."""
    offers = engine_offers()
    models = configured_models(args, [offer.options for offer in offers])
    options = next(iter(models.values())).config.options
    as_json = options.log_format == "json"
    set_up_log(options.log_level.upper(), as_json=as_json)
    try:
        return _serve(models, opened_engines(offers, models))
    except CorellmError as error:
        if args.traceback or not as_json:
            raise
        logger.error("%s", error)
        return 1


def _serve(models: Mapping[str, ModelConfig], engines: AbstractContextManager[Mapping[str, EngineClient]]) -> int:
    return_large_blocks()  # the engine has a process of its own
    from corellm_server.connections import allow_descriptors
    from corellm_server.fetching.fetcher import Fetcher
    from corellm_server.kept.responses import open_table
    from corellm_server.running import HttpServer, bind, check_certificate, url_of
    from corellm_server.service import served_names

    config = next(iter(models.values())).config  # beside options of the model, that of the server
    options = config.options
    warn(config)
    check_certificate(options)
    open_table(options).close()  # before the model is loaded
    allow_descriptors(options.max_connections)
    logger.info("loading %s", ", ".join(model.engine_args["model"] for model in models.values()))
    names = [served_names(model.config.options, model.engine_args["model"])[0] for model in models.values()]
    tracing = _tracing(options.otlp_traces_endpoint, names[0])
    with bind(options) as bound, engines as clients:
        fetcher = Fetcher(config.fetching) if config.fetching.allowed_media_domains else None
        services = services_of(models, clients, fetcher, tracing)
        told = f"corellm serves {', '.join(names)} at {url_of(bound, options)}/v1 (Ctrl-C stops)"
        gc.freeze()  # a full collection would hold up requests
        return HttpServer(services[0], bound, services[1:]).run(
            lambda: print(start_line(told, as_json=options.log_format == "json"), flush=True)
        )


def services_of(
    models: Mapping[str, ModelConfig],
    clients: Mapping[str, EngineClient],
    fetcher: Fetcher | None = None,
    tracing: Tracing | None = None,
) -> list[Service]:
    """The models of a server, in their order, with what they share.

    Args:
        models, clients: the models and their engines by name.
        fetcher, tracing: of the server.
    """
    from corellm_server.service import Service

    services: list[Service] = []
    for name, model in models.items():
        first = services[0] if services else None
        services.append(
            Service(
                clients[name], model.engine_args["model"], model.config, fetcher, tracing,
                first=first, max_queue=model.max_queue,
            )
        )  # fmt: skip
    return services


def _tracing(endpoint: str | None, model: str) -> Tracing | None:
    if endpoint is None:
        return None
    try:
        from corellm_server.tracing import Tracing
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise MissingExtraError(
            "--otlp-traces-endpoint needs OpenTelemetry: "
            "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from error
    return Tracing.to_endpoint(endpoint, model)


def warn(config: ServerConfig) -> None:
    """Log a warning for each option that opens the server to others."""
    options = config.options
    if options.host not in ("127.0.0.1", "::1", "localhost") and not options.api_key:
        logger.warning("every machine that reaches %s may use this server: it has no --api-key", options.host)
    if any(pattern.host == "*" for pattern in config.fetching.patterns()):
        logger.warning("requests may name any public host to fetch media from (--allowed-media-domains)")

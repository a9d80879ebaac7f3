"""`corellm serve MODEL`: an HTTP server that OpenAI's and Anthropic's clients can use."""

from __future__ import annotations

import argparse
import gc
import logging
from typing import TYPE_CHECKING, Any

from corellm.cli.fields import add_fields
from corellm.errors import CorellmError, MissingExtraError
from corellm.system.allocator import return_large_blocks
from corellm.system.log_format import set_up_log, start_line
from corellm_server.commands.absent_flags import without_absent
from corellm_server.commands.arguments import add_server, configured
from corellm_server.commands.engines import OpenEngine, engine_of, engine_offers
from corellm_server.options import ServerConfig

if TYPE_CHECKING:
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
  corellm serve --config server.yaml            # options by name, `model:` among them

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
        help="a directory, a hub name (owner/name), `demo` or `demo-video`",
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
    config, engine_args = configured(args, [offer.options for offer in offers])
    as_json = config.options.log_format == "json"
    set_up_log(config.options.log_level.upper(), as_json=as_json)
    try:
        return _serve(config, engine_args, engine_of(offers, config.offered))
    except CorellmError as error:
        if args.traceback or not as_json:
            raise
        logger.error("%s", error)
        return 1


def _serve(config: ServerConfig, engine_args: dict[str, Any], open_engine: OpenEngine) -> int:
    return_large_blocks()  # the engine has a process of its own
    from corellm_server.connections import allow_descriptors
    from corellm_server.fetching.fetcher import Fetcher
    from corellm_server.kept.responses import open_table
    from corellm_server.running import HttpServer, bind, check_certificate, url_of
    from corellm_server.service import Service, served_names

    options = config.options
    warn(config)
    check_certificate(options)
    open_table(options).close()  # before the model is loaded
    allow_descriptors(options.max_connections)
    logger.info("loading %s", engine_args["model"])
    name = served_names(options, engine_args["model"])[0]
    tracing = _tracing(options.otlp_traces_endpoint, name)
    with bind(options) as bound, open_engine(engine_args) as llm:
        fetcher = Fetcher(config.fetching) if config.fetching.allowed_media_domains else None
        service = Service(llm, engine_args["model"], config, fetcher, tracing)
        told = f"corellm serves {name} at {url_of(bound, options)}/v1 (Ctrl-C stops)"
        gc.freeze()  # a full collection would hold up requests
        return HttpServer(service, bound).run(
            lambda: print(start_line(told, as_json=options.log_format == "json"), flush=True)
        )


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

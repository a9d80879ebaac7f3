"""`corellm batch`: the requests of a file, through the server's application without a server."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from corellm.cli.arguments import loading
from corellm.cli.fields import add_fields
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.system.log_format import set_up_log
from corellm_server.batch.inputs import InputOptions
from corellm_server.commands.arguments import add_server, configured
from corellm_server.commands.engines import asked_for, batch_offers
from corellm_server.offers import BatchOffer
from corellm_server.options import ServerConfig, ServerOptions

if TYPE_CHECKING:
    from corellm_server.batch.input_file import Input
    from corellm_server.batch.output_file import OutputFile
    from corellm_server.batch.progress import Progress

_HELP = """\
Do all requests of a file in OpenAI's batch format, and write the results to another file, in the same order. A line is
  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "demo", "messages": [...]}}
url is any that takes POST of `corellm serve`; the results are what a server would respond. A line that is wrong and a
request that fails get a result that says why; the rest is done. After Ctrl-C, a kill or a full disk, the same command
goes on with what has no result yet. A directory of images is done with one question, or with those of a table in it."""

_EPILOG = """\
examples:
  corellm batch -i requests.jsonl -o results.jsonl --model demo
  corellm batch -i requests.jsonl -o results.jsonl --model demo --allowed-local-media-path images/
  corellm batch -i requests.jsonl -o results.jsonl --model llava-hf/llava-1.5-7b-hf --served-model-name gpt-4o
  corellm batch -i images/ -o results.jsonl --model demo --question "What shape is it?"
  corellm batch -i requests.jsonl -o results.jsonl --model demo --data-parallel-size 2
  corellm batch -i requests.jsonl -o results.jsonl --config server.yaml      # also one of corellm serve

exit status:
  0  all requests succeeded
  1  some failed, or the engine or the disk did
  2  wrong options or files; nothing was done
  130 stopped by Ctrl-C, 143 by SIGTERM
"""
_OPTIONS = (
    "served_model_name", "lora_modules", "allowed_local_media_path", "enable_mm_embeds", "allow_request_templates",
    "allowed_template_kwargs", "allowed_mm_processor_kwargs", "max_window_size", "score_template",
    "request_timeout",
)  # fmt: skip
"""The server's options that mean something without one."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "batch", help="do the requests of a file, in OpenAI's batch format",
        usage="corellm batch -i FILE -o FILE --model MODEL [OPTION ...]", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "-i",
        "--input",
        metavar="FILE",
        required=True,
        help="the requests, one per line (JSONL); or a directory of images",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True,
        help="the results; those that it has of the same input are kept",
    )  # fmt: skip
    parser.add_argument(
        "--model", metavar="MODEL", default=argparse.SUPPRESS,
        help="a directory, a GGUF file, a hub name (owner/name), `demo` or `demo-video`",
    )  # fmt: skip
    of_clients = {field.name for field in fields(ServerOptions)}.difference(_OPTIONS)
    add_server(parser, "requests", skip={"body_timeout", "body_stall_timeout", *of_clients})
    add_fields(parser, "inputs without requests", InputOptions)
    for offer in batch_offers():
        add_fields(parser, offer.title, offer.options)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do what has no result yet; returns the exit status."""
    try:
        offers = batch_offers()
        config, engine_args = configured(args, [*(offer.options for offer in offers), InputOptions])
        *offered, inputs = config.offered
        EngineConfig.from_kwargs(**engine_args)  # refused before the files are touched
        set_up_log(logging.WARNING, as_json=False)
        asked = asked_for(offers, offered)
        if asked is not None and isinstance(asked[0], BatchOffer):
            return asked[0].run(asked[1], config, engine_args, inputs, args.input, args.output)
        if args.input.endswith((".parquet", ".csv")):
            raise ConfigError(f"the input {args.input} is a table, which --ray reads (extensions/ray); else give JSONL")
        from corellm_server.batch.opening import open_input
        from corellm_server.batch.output_file import OutputFile
        from corellm_server.batch.resuming import compare

        with open_input(args.input, inputs, config, engine_args) as requests, OutputFile(args.output) as output:
            progress = compare(requests, output)
            if progress.num_done < progress.total:
                ended = _run(config, engine_args, requests, output, progress)
                if ended is not None:
                    return 128 + ended
            else:
                print(progress.summary())
    except ConfigError as error:
        if args.traceback:
            raise
        print(f"corellm batch: error: {error}", file=sys.stderr)
        return 2
    return int(progress.failures.total() > 0)


def _run(
    config: ServerConfig, engine_args: dict[str, Any], requests: Input, output: OutputFile, progress: Progress
) -> signal.Signals | None:
    """Load the model, run, and print what was done; returns the signal that ended it."""
    import asyncio

    from corellm.serving import ProcessLLM
    from corellm_server.batch.running import BatchRun, batch_options
    from corellm_server.data_parallel.client import DataParallelLLM
    from corellm_server.fetching.fetcher import Fetcher
    from corellm_server.service import Service

    async def run_all(service: Service) -> signal.Signals | None:
        try:
            return await BatchRun(service, requests, output, progress).run()
        finally:
            await service.close()

    several = config.offered[0]
    with loading(engine_args["model"]):
        is_one = several.data_parallel_size == 1
        llm = ProcessLLM(**engine_args) if is_one else DataParallelLLM(**engine_args, **asdict(several))
    with contextlib.closing(llm):
        fetcher = Fetcher(config.fetching) if config.fetching.allowed_media_domains else None
        config = replace(config, options=batch_options(config.options, llm.max_num_seqs))
        try:
            return asyncio.run(run_all(Service(llm, engine_args["model"], config, fetcher)))
        finally:
            print(progress.summary(), flush=True)
            if progress.num_done < progress.total:
                print("corellm batch: the same command goes on with the rest", file=sys.stderr)

"""`corellm bench serve --url URL`: measure a server under load; any that is OpenAI-compatible."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from corellm.cli.fields import json_object
from corellm.cli.outputs import check_plotting, check_writable
from corellm.progress import BAR_FORMAT
from corellm_server.loadgen.result import RequestResult
from corellm_server.loadgen.settings import LoadSettings

_HELP = """\
Send chat completions to a server at random times (a Poisson process), and measure what clients wait for. Each request
has a prompt and images of its own, so that caches do not help. The exit status is 1 if no request succeeded."""

_EPILOG = """\
examples:
  corellm bench serve --url http://127.0.0.1:8000 --rate 4 --num 200
  corellm bench serve --url http://127.0.0.1:8000 --images 1 --slo-ttft 500 --slo-tpot 50 --plot load.png
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure a server under load",
        description=_HELP,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = {field.name: field.default for field in fields(LoadSettings)}
    parser.add_argument("what", choices=("serve",), help="what is measured: a server")
    parser.add_argument("--url", required=True, help="the server, e.g. http://127.0.0.1:8000")
    parser.add_argument("--api-key", metavar="KEY", help="the server's key")
    parser.add_argument("--model", metavar="NAME", help="the model's name (default: the server's first)")
    load = parser.add_argument_group("load")
    for name, kind, metavar, text in (
        ("rate", float, "R", "requests per second; inf for all at once"),
        ("num", int, "N", "number of requests"),
        ("images", int, "N", "images per request"),
        ("image_size", _size, "WxH", "size of each image"),
        ("prompt_words", int, "N", "words per prompt"),
        ("max_tokens", int, "N", "most tokens of an output"),
        ("seed", int, "N", "of prompts, images and times"),
        ("timeout", float, "S", "seconds until a request has failed"),
    ):
        default: Any = defaults[name]
        shown = "x".join(map(str, default)) if isinstance(default, tuple) else f"{default:g}"
        load.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            metavar=metavar,
            default=default,
            help=f"{text} (default: {shown})",
        )
    load.add_argument(
        "--extra-body",
        type=json_object,
        default={},
        metavar="JSON",
        help="further fields, e.g. '{\"ignore_eos\": true}'",
    )
    report = parser.add_argument_group("report")
    report.add_argument(
        "--slo-ttft", type=float, metavar="MS", help="a good output's first token comes within this time"
    )
    report.add_argument("--slo-tpot", type=float, metavar="MS", help="its further tokens take at most this, on average")
    report.add_argument("--json", metavar="FILE", help="write all numbers and every request's times")
    report.add_argument("--plot", metavar="FILE", help="draw them (PNG, SVG or PDF)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write what is wanted; 1 if no request succeeded."""
    from tqdm.auto import tqdm

    from corellm_server.loadgen import plot, report

    settings = LoadSettings(**{field.name: getattr(args, field.name) for field in fields(LoadSettings)})
    if args.plot:
        check_plotting(args.plot)
    if args.json:
        check_writable(args.json)
    with tqdm(total=settings.num, delay=1.0, desc="Requests", dynamic_ncols=True, bar_format=BAR_FORMAT) as bar:
        model, results = _measure(settings, bar)
    print(report.as_text(settings, model, results))
    if args.json:
        Path(args.json).write_text(json.dumps(report.as_json(settings, model, results), indent=1), encoding="utf-8")
    if args.plot:
        plot.save_plot(settings, model, results, args.plot)
    return int(all(result.error for result in results))


def _measure(settings: LoadSettings, bar: Any) -> tuple[str, list[RequestResult]]:
    import asyncio

    from corellm_server.loadgen.load import run_load

    num_tokens = num_failed = 0

    def count(result: RequestResult) -> None:
        nonlocal num_tokens, num_failed
        num_tokens += result.output_tokens
        num_failed += result.error is not None
        elapsed = max(result.ended, 1e-6)
        rates = f"{(bar.n + 1) / elapsed:.3g}/s, {num_tokens / elapsed:.0f} output tok/s"
        bar.set_postfix_str(f"{rates}, {num_failed} failed", refresh=False)
        bar.update()

    return asyncio.run(run_load(settings, count))


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"not a size: {text!r}; write 512x512")
    return int(found[1]), int(found[2])

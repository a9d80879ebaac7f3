"""`corellm try MODEL`: run a checkpoint beside transformers, and say what is the same and what differs."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from corellm.cli.arguments import add_engine, engine_args, loading
from corellm.errors import RequestError

if TYPE_CHECKING:
    from corellm_testing.trial import Finding

_HELP = """\
Run a checkpoint in corellm and in transformers, side by side: requests of text and of every kind of item that it takes,
alone and in one batch, must have transformers' own greedy tokens and their log-probabilities. Where a plugin's contract
names another reference, it stands for transformers. What differs is shown with the plugin's hook to look at. Both
models are in memory, in float32. The exit status is 1 if anything differs, or it does not load."""

_EPILOG = """\
examples:
  corellm try demo
  corellm try llava-hf/llava-interleave-qwen-0.5b-hf --tokens 32
  corellm try ./my-checkpoint --json > findings.json
"""
_ENDINGS = {True: "all outputs are the reference's", False: "this checkpoint is not served as the reference runs it"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "try", help="run a checkpoint beside transformers", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="a directory, a hub name (owner/name), `demo` or `demo-video`")
    parser.add_argument("--tokens", type=int, default=16, metavar="N", help="of each output (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output: a list of findings")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    parser.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add_engine(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Try it; 1 if anything differs."""
    if args.tokens < 1:
        raise RequestError(f"--tokens must be at least 1, got {args.tokens}")
    given = engine_args(args)
    from corellm_testing.trial import Trial

    trial = Trial(max_tokens=args.tokens, **given)
    found: list[Finding] = []
    findings = trial.findings()
    while True:
        with loading(args.model) if not found else nullcontext():
            finding = next(findings, None)
        if finding is None:
            break
        found.append(finding)
        if not args.json:
            _show(finding)
    kept = all(finding.kept for finding in found)
    if args.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        print(f"\n{sum(finding.kept for finding in found)} of {len(found)}: {_ENDINGS[kept]}")
    return int(not kept)


def _show(finding: Finding) -> None:
    mark = "ok" if finding.kept else "DIFFERS"
    print(f"{mark:8}{finding.check:50}{finding.said if finding.kept else ''}".rstrip())
    if not finding.kept:
        print(f"        {finding.said}")
        if finding.hook is not None:
            print(f"        look at: {finding.hook}")
    sys.stdout.flush()

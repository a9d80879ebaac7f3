"""`corellm inspect MODEL [FILE ...] [PROMPT]`: show what the adapter made of a prompt, for its author."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from corellm.cli.arguments import add_engine, add_prompt, load_engine, open_media
from corellm.cli.conversation import system_message, user_message
from corellm.cli.media import by_modality
from corellm.errors import RequestError

if TYPE_CHECKING:
    from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt

_HELP = """\
Show what an adapter makes of a prompt: its tokens, which of them take embeddings and at which positions, each item's
placeholder and tensors, what the encoder returned, and what every stage took. MODEL, files, prompt and options are
those of `corellm run`; the prompt becomes a chat message in the same way, unless --raw says that it has its own
placeholders. A stage that fails is shown as failed, with what the others told; the exit status is 1 then."""

_EPILOG = """\
examples:
  corellm inspect demo image.png "What shape?"
  corellm inspect demo image.png "What shape?" --html report.html
  corellm inspect demo image.png --raw "USER: <image> What shape? ASSISTANT:"
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "inspect", help="show what an adapter makes of a prompt", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_prompt(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that shows it beside the images")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    add_engine(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show; 1 if a stage failed."""
    files, prompt = open_media(args)
    if not prompt and not files:
        raise RequestError("nothing to inspect; write a prompt, or give a file")
    if args.html is not None and not args.html.parent.is_dir():
        raise RequestError(f"--html {args.html}: there is no directory {str(args.html.parent)!r}; make it first")
    from corellm_testing.inspection.collect import collect

    def prepare(inputs: InputProcessor) -> ProcessedPrompt:
        if args.raw:
            return inputs.process({"prompt": prompt or "", "multi_modal_data": by_modality(files)})
        return inputs.process_chat([*system_message(args.system), user_message(prompt or "", files)])

    report = collect(
        lambda: load_engine(args, check_encoders=False),
        prepare,
        by_modality(files),
        model=args.model,
        adapter=getattr(args, "adapter", None),
    )
    if args.html is not None:
        from corellm_testing.inspection.page import make_page

        _write(args.html, make_page(report))
    if args.json:
        print(report.to_json())
    else:
        from corellm_testing.inspection.terminal import print_report

        print_report(report)
    if report.error is None:
        return 0
    print(f"corellm: error: {report.error}", file=sys.stderr)
    return 1


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"--html {path}: {error.strerror or error}") from error

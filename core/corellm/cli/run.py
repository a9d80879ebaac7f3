"""`corellm run MODEL [FILE ...] [PROMPT]`: complete one prompt, or hold a conversation if none is given.

Uses the engine's public calls only; output is printed as it is generated.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from corellm.cli.arguments import add_engine, add_prompt, load_engine, open_media
from corellm.cli.conversation import Conversation, print_text, stream, system_message, user_message
from corellm.cli.media import by_modality
from corellm.errors import RequestError
from corellm.prompts import LORA_KEY
from corellm.sampling_params import SamplingParams

_HELP = """\
Ask a model about images, videos and audio. Arguments after MODEL that are files (or end like one), folders (all media
files in them, in the order of their names) or - (standard input) are media, in their order (after those given by
--image, --video and --audio); the rest is the prompt. Without a prompt it is read from standard input, or, on a
terminal, a conversation begins."""

_EPILOG = """\
examples:
  corellm run demo image.png "What number is written here?"
  corellm run demo-video video.mp4 "Which way does it move?"
  corellm run demo --image image.png "How many shapes are there?" --max-tokens 8
  corellm run demo shapes/ "How many images are there?"
  echo "What shape?" | corellm run demo image.png
  curl -s https://example.com/image.png | corellm run demo - "What shape?"
  corellm run demo                       # a conversation; /image FILE shows it an image
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run", help="ask a model a question, or talk to it", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_prompt(parser)
    parser.add_argument("--lora", metavar="DIRECTORY", help="a LoRA adapter that answers, by its directory or hub name")
    _add_sampling(parser.add_argument_group("sampling"))
    add_engine(parser)
    parser.set_defaults(run=run)


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default), higher is more random")
    group.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling (default 1: off)")
    group.add_argument("--top-k", type=int, default=0, help="sample among the k most likely (default 0: all)")
    group.add_argument("--min-p", type=float, default=0.0, help="drop tokens below this share of the most likely one")
    group.add_argument("--repetition-penalty", type=float, default=1.0, help="above 1 discourages repetition")
    group.add_argument("--max-tokens", type=int, default=256, help="longest output in tokens (default 256)")
    group.add_argument("--seed", type=int, help="makes sampling repeat exactly")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the output here; may be repeated"
    )


def run(args: argparse.Namespace) -> int:
    """Complete the prompt, or hold a conversation."""
    media, prompt = open_media(args)
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p, seed=args.seed,
        repetition_penalty=args.repetition_penalty, max_tokens=args.max_tokens, stop=args.stop,
    )  # fmt: skip
    if prompt is None and not sys.stdin.isatty():
        prompt = _read_prompt()
    if prompt is not None and not prompt and not media:
        raise RequestError("the prompt is empty; write a question, or give a file")
    keys: dict[str, Any] = {}
    if args.lora is not None:
        from corellm import LoRARequest  # an extension's

        keys, args.enable_lora = {LORA_KEY: LoRARequest(args.lora, 1, args.lora)}, True
    engine = load_engine(args)
    try:
        if prompt is None:
            return Conversation(engine, params, args.model, args.system, media, keys).run()
        if args.raw:
            given = {"prompt": prompt, "multi_modal_data": by_modality(media), **keys}
            processed = engine.input_processor.process(given)
        else:
            messages = [*system_message(args.system), user_message(prompt, media)]
            processed = engine.input_processor.process_chat(messages, prompt_keys=keys)
        if not print_text(stream(engine, "run", processed, params)):
            print("(empty output)", file=sys.stderr)
    finally:
        engine.shutdown()
    return 0


def _read_prompt() -> str:
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise RequestError("the prompt on standard input is not text in this terminal's encoding") from error

"""`corellm run MODEL [FILE ...] [PROMPT]`: answer one question, or talk when none is given.

Everything goes through the engine's public calls, as a server's would; answers are streamed as they come.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from corellm.cli.conversation import Conversation, print_answer, stream_answer, system_message, user_message
from corellm.config import DTYPES, CacheConfig, ModelConfig, MultiModalConfig, SchedulerConfig
from corellm.errors import MediaError, RequestError
from corellm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine

MEDIA_SUFFIXES = {
    "image": {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"},
}
"""By which an argument is taken for a file even if there is none, so that a typing error is reported as one."""

_HELP = """\
Ask a model about pictures. Arguments after MODEL that are files (or end like one) are pictures, the rest is the prompt.
Without a prompt it is read from standard input, or, on a terminal, a conversation begins."""

_EPILOG = """\
examples:
  corellm run demo picture.png "What number is written here?"
  corellm run demo --image picture.png "How many shapes are there?" --max-tokens 8
  echo "What shape?" | corellm run demo picture.png
  corellm run demo                       # a conversation; /image FILE shows it a picture
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run", help="ask a model a question, or talk to it", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="a directory, a hub name (owner/name), or `demo`")
    parser.add_argument("words", metavar="FILE|PROMPT", nargs="*", default=[], help="pictures and the question")
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture; may be repeated")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="take the prompt as it is, without a chat template")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    _add_sampling(parser.add_argument_group("sampling"))
    _add_engine(parser.add_argument_group("engine"))
    parser.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default), higher is more random")
    group.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling (default 1: off)")
    group.add_argument("--top-k", type=int, default=0, help="sample among the k most likely (default 0: all)")
    group.add_argument("--min-p", type=float, default=0.0, help="drop tokens below this share of the most likely one")
    group.add_argument("--repetition-penalty", type=float, default=1.0, help="above 1 discourages repetition")
    group.add_argument("--max-tokens", type=int, default=256, help="longest answer (default 256)")
    group.add_argument("--seed", type=int, help="makes sampling repeat exactly")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the answer here; may be repeated"
    )


def _add_engine(group: argparse._ArgumentGroup) -> None:
    glossary = {f.name: f.default for config in (ModelConfig, CacheConfig, SchedulerConfig) for f in fields(config)}
    group.add_argument(
        "--dtype", choices=DTYPES, default=glossary["dtype"], help="precision (default: the checkpoint's)"
    )
    group.add_argument("--max-model-len", type=int, metavar="N", help="longest sequence (default: the model's)")
    group.add_argument("--adapter", metavar="DIST", help="plugin to use where several claim the model")
    group.add_argument("--revision", help="branch, tag or commit of a hub model")
    group.add_argument("--kv-cache-memory", type=int, metavar="BYTES", help="memory for the KV cache")
    group.add_argument("--trust-remote-code", action="store_true", help="run Python code from the checkpoint")


def run(args: argparse.Namespace) -> int:
    """Answer, or talk."""
    files, words = _sort_arguments(args.words)
    images = [_checked_picture(image) for image in [*args.image, *files]]  # before a model is loaded for nothing
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p, seed=args.seed,
        repetition_penalty=args.repetition_penalty, max_tokens=args.max_tokens, stop=args.stop,
    )  # fmt: skip
    prompt = " ".join(words) if words else None
    if prompt is None and not sys.stdin.isatty():
        prompt = _read_prompt()
    if prompt is not None and not prompt and not images:
        raise RequestError("the prompt is empty; write a question, or give a picture")
    engine = _load(args)
    try:
        if prompt is None:
            return Conversation(engine, params, args.model, args.system, images).run()
        if args.raw:
            processed = engine.input_processor.process({"prompt": prompt, "multi_modal_data": {"image": images}})
        else:
            processed = engine.input_processor.process_chat(
                [*system_message(args.system), user_message(prompt, images)]
            )
        if not print_answer(stream_answer(engine, "answer", processed, params)):
            print("(an empty answer)", file=sys.stderr)
    finally:
        engine.shutdown()
    return 0


def _read_prompt() -> str:
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise RequestError("the prompt on standard input is not text in this terminal's encoding") from error


def _sort_arguments(words: list[str]) -> tuple[list[str], list[str]]:
    """Tell files from text: what exists, ends like a picture, or looks like a path."""
    suffixes = {suffix for known in MEDIA_SUFFIXES.values() for suffix in known}
    files = [word for word in words if is_path(word) or (" " not in word and Path(word).suffix.lower() in suffixes)]
    return files, [word for word in words if word not in files]


def is_path(word: str) -> bool:
    """Whether there is a file of that name, or the word can hardly be anything but a path."""
    try:
        if word and Path(word).is_file():
            return True
    except (OSError, ValueError):  # a whole question is too long for a name
        return False
    return " " not in word and (word.startswith(("./", "../", "/", "~/")) or word.endswith("/"))


def _checked_picture(name: str) -> str:
    """A file's name, once it is known to be a readable picture.

    Raises:
        RequestError: what is wrong with it.
    """
    from corellm.multimodal.image import load_image

    path = Path(name).expanduser()
    try:
        load_image(path, MultiModalConfig().max_image_pixels)
    except MediaError as error:
        quoted = "" if path.exists() else " (a question with spaces must be in quotes)"
        raise RequestError(f"{error}{quoted}") from error
    return str(path)


def _load(args: argparse.Namespace) -> LLMEngine:
    import logging

    from corellm.engine.llm_engine import LLMEngine
    from corellm.worker.process import collector_paused

    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(name)s: %(message)s")
    if not args.verbose:
        with collector_paused():
            _quiet_transformers()
    return LLMEngine.from_kwargs(
        model=args.model, dtype=args.dtype, max_model_len=args.max_model_len, adapter=args.adapter,
        revision=args.revision, kv_cache_memory=args.kv_cache_memory, trust_remote_code=args.trust_remote_code,
        max_num_seqs=1,
    )  # fmt: skip


def _quiet_transformers() -> None:
    """Only errors: its advice is for people who call it, not for those who run a model."""
    import transformers

    transformers.logging.set_verbosity_error()

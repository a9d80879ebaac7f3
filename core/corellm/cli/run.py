"""`corellm run MODEL [FILE ...] [PROMPT]`: answer one question, or talk when none is given.

Everything goes through the engine's public calls, as a server's would; answers are streamed as they come.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from corellm.cli.conversation import Conversation, print_answer, stream_answer, system_message, user_message
from corellm.cli.media import MediaFile, by_modality, open_file, sort_words
from corellm.config import DTYPES, CacheConfig, ModelConfig, SchedulerConfig
from corellm.errors import RequestError
from corellm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine

_HELP = """\
Ask a model about pictures, videos and sounds. Arguments after MODEL that are files (or end like one) are media, in
their order (after those given by --image, --video and --audio); the rest is the prompt. Without a prompt it is read
from standard input, or, on a terminal, a conversation begins."""

_EPILOG = """\
examples:
  corellm run demo picture.png "What number is written here?"
  corellm run demo-video clip.mp4 "Which way does it move?"
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
    parser.add_argument("model", metavar="MODEL", help="a directory, a hub name (owner/name), `demo` or `demo-video`")
    parser.add_argument("words", metavar="FILE|PROMPT", nargs="*", default=[], help="media and the question")
    for modality, name in (("image", "a picture"), ("video", "a video"), ("audio", "a sound")):
        parser.add_argument(
            f"--{modality}", action=_AppendMedia, dest="media", default=[], metavar="FILE",
            help=f"{name}, whatever its name ends with; may be repeated",
        )  # fmt: skip
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
    group.add_argument(
        "--mm-processor-kwargs", type=_processor_arguments, default={}, metavar="JSON",
        help="arguments of the model's processor, e.g. '{\"max_pixels\": 200704}'",
    )  # fmt: skip
    group.add_argument("--kv-cache-memory", type=int, metavar="BYTES", help="memory for the KV cache")
    group.add_argument("--trust-remote-code", action="store_true", help="run Python code from the checkpoint")


class _AppendMedia(argparse.Action):
    """Collects `--image`, `--video` and `--audio` in their order."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        assert option_string is not None
        namespace.media = [*namespace.media, (option_string.removeprefix("--"), values)]


def run(args: argparse.Namespace) -> int:
    """Answer, or talk."""
    names, words = sort_words(args.words)
    media = [open_file(name, modality) for modality, name in args.media]  # before a model is loaded for nothing
    media += [_open(name, has_text=bool(words)) for name in names]
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p, seed=args.seed,
        repetition_penalty=args.repetition_penalty, max_tokens=args.max_tokens, stop=args.stop,
    )  # fmt: skip
    prompt = " ".join(words) if words else None
    if prompt is None and not sys.stdin.isatty():
        prompt = _read_prompt()
    if prompt is not None and not prompt and not media:
        raise RequestError("the prompt is empty; write a question, or give a file")
    engine = _load(args)
    try:
        if prompt is None:
            return Conversation(engine, params, args.model, args.system, media).run()
        if args.raw:
            processed = engine.input_processor.process({"prompt": prompt, "multi_modal_data": by_modality(media)})
        else:
            processed = engine.input_processor.process_chat([*system_message(args.system), user_message(prompt, media)])
        if not print_answer(stream_answer(engine, "answer", processed, params)):
            print("(an empty answer)", file=sys.stderr)
    finally:
        engine.shutdown()
    return 0


def _open(name: str, *, has_text: bool) -> MediaFile:
    try:
        return open_file(name)
    except RequestError as error:
        if has_text and "no such file" in str(error):
            raise RequestError(f"{error} (a question with spaces must be in quotes)") from error
        raise


def _processor_arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {text!r}") from error
    if not isinstance(arguments, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text!r}")
    return arguments


def _read_prompt() -> str:
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise RequestError("the prompt on standard input is not text in this terminal's encoding") from error


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
        mm_processor_kwargs=args.mm_processor_kwargs, max_num_seqs=1,
    )  # fmt: skip


def _quiet_transformers() -> None:
    """Only errors: its advice is for people who call it, not for those who run a model."""
    import transformers

    transformers.logging.set_verbosity_error()

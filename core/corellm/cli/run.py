"""`corellm run MODEL [FILE ...] [PROMPT]`: answer one question, or talk when none is given.

Everything goes through the engine's public calls, as a server's would; answers are streamed as they come.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.config import DTYPES, CacheConfig, ModelConfig, SchedulerConfig
from corellm.errors import CorellmError, InvalidParameterError, RequestError
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
  corellm run demo --image a.png --image b.png "How many shapes are there?"
  echo "What shape?" | corellm run demo picture.png
  corellm run demo                       # a conversation; /image FILE shows it a picture
"""

_CHAT_HELP = "/image FILE adds a picture to your next message, /reset starts over, /exit (or Ctrl-D) leaves."


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run", help="ask a model a question, or talk to it", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="a directory, a hub name (owner/name), or `demo`")
    parser.add_argument("words", metavar="FILE|PROMPT", nargs="*", help="pictures and the question")
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture; may be repeated")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="take the prompt as it is, without a chat template")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    _add_sampling(parser.add_argument_group("sampling"))
    _add_engine(parser.add_argument_group("engine"))
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
    images = [*args.image, *files]
    for image in images:  # before a model is loaded for nothing
        if not Path(image).is_file():
            raise RequestError(f"no such file: {image!r}")
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p, seed=args.seed,
        repetition_penalty=args.repetition_penalty, max_tokens=args.max_tokens, stop=args.stop,
    )  # fmt: skip
    prompt = " ".join(words) if words else None
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
    if prompt is not None and not prompt and not images:
        raise RequestError("the prompt is empty; write a question, or give a picture")
    engine = _load(args)
    try:
        if prompt is None:
            return _converse(engine, params, images, args)
        if args.raw:
            processed = engine.input_processor.process({"prompt": prompt, "multi_modal_data": {"image": images}})
        else:
            processed = engine.input_processor.process_chat([*_system(args), _user_message(prompt, images)])
        for piece in _stream(engine, processed, params):
            print(piece, end="", flush=True)
        print()
    finally:
        engine.shutdown()
    return 0


def _sort_arguments(words: list[str]) -> tuple[list[str], list[str]]:
    """Tell files from text."""
    suffixes = {suffix for known in MEDIA_SUFFIXES.values() for suffix in known}
    files = [w for w in words if (w and Path(w).is_file()) or (" " not in w and Path(w).suffix.lower() in suffixes)]
    return files, [w for w in words if w not in files]


def _load(args: argparse.Namespace) -> LLMEngine:
    import logging

    from corellm.engine.llm_engine import LLMEngine
    from corellm.worker.process import collector_paused

    logging.basicConfig(level=logging.INFO if args.verbose else logging.ERROR, format="%(name)s: %(message)s")
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


def _system(args: argparse.Namespace) -> list[dict[str, Any]]:
    return [{"role": "system", "content": args.system}] if args.system else []


def _user_message(text: str, images: list[str]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def _stream(engine: LLMEngine, prompt: Any, params: SamplingParams) -> Iterator[str]:
    """The answer's text in pieces.

    Raises:
        CorellmError: the request failed.
    """
    engine.add_request("run", prompt, params)
    shown = 0
    try:
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.error is not None:
                    raise output.error
                text = output.outputs[0].text.lstrip()  # most models begin an answer with a space
                yield text[shown:]
                shown = len(text)
    finally:
        engine.abort_request("run")


def _converse(engine: LLMEngine, params: SamplingParams, images: list[str], args: argparse.Namespace) -> int:
    """Read, answer, remember, until the end of input. A wrong message costs that message, not the conversation."""
    print(f"{args.model} is listening. {_CHAT_HELP}")
    history = _system(args)
    pending = list(images)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return 0
        command, _, argument = line.partition(" ")
        if command in ("/exit", "/quit"):
            return 0
        if command == "/reset":
            history, pending = _system(args), []
        elif command == "/image":
            pending += _checked_file(argument.strip())
        elif command.startswith("/"):
            print(_CHAT_HELP)
        elif line:
            history, pending = _answer(engine, params, history, _user_message(line, pending), pending)


def _checked_file(name: str) -> list[str]:
    if Path(name).is_file():
        return [name]
    print(f"no such file: {name!r}", file=sys.stderr)
    return []


def _answer(
    engine: LLMEngine,
    params: SamplingParams,
    history: list[dict[str, Any]],
    message: dict[str, Any],
    pending: list[str],
) -> tuple[list[dict[str, Any]], list[str]]:
    """One turn: gives the new history and the pictures still to be shown (the old ones, if the turn failed)."""
    answer = ""
    try:
        processed = engine.input_processor.process_chat([*history, message])
        for piece in _stream(engine, processed, params):
            answer += piece
            print(piece, end="", flush=True)
        print()
    except KeyboardInterrupt:
        print("  (stopped)")
    except InvalidParameterError:
        raise
    except CorellmError as error:
        print(f"corellm: error: {error}", file=sys.stderr)
        return history, pending
    return [*history, message, {"role": "assistant", "content": answer}], []

"""Arguments that every command with a model takes: the model, media and text, and the engine's options.

Knows the command line and which of its words are media; what is done with the model is the commands' own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.cli.fields import add_fields, given_fields
from corellm.cli.media import MediaFile, modality_of, open_files, sort_words
from corellm.config import CacheConfig, ModelConfig, MultiModalConfig, SchedulerConfig
from corellm.errors import RequestError

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine


def add_prompt(
    parser: argparse.ArgumentParser, *, words: str = "FILE|PROMPT", meaning: str = "media and the question"
) -> None:
    """Add the model, media, the text, and how it becomes a prompt; `words` and `meaning` are the help of both."""
    meant = "a directory, a GGUF file, a hub name (owner/name, GGUF: owner/name:TYPE), `demo` or `demo-video`"
    parser.add_argument("model", metavar="MODEL", help=meant)
    parser.add_argument("words", metavar=words, nargs="*", default=[], help=meaning)
    for modality, name in (("image", "an image file"), ("video", "a video file"), ("audio", "an audio file")):
        parser.add_argument(
            f"--{modality}", action=_AppendMedia, dest="media", default=[], metavar="FILE",
            help=f"{name}, whatever its name ends with, or a folder of them, or -; may be repeated",
        )  # fmt: skip
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="take the prompt as it is, without a chat template")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    parser.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


ENGINE_CONFIGS = (ModelConfig, CacheConfig, SchedulerConfig, MultiModalConfig)
"""Classes whose fields are the engine's options."""


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the engine's options; sampling has a seed of its own."""
    for config in ENGINE_CONFIGS:
        add_fields(parser, f"engine: {config.__name__}", config, skip=("model", "seed"))


class _AppendMedia(argparse.Action):
    """Collects `--image`, `--video` and `--audio` in their order."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        assert option_string is not None
        namespace.media = [*namespace.media, (option_string.removeprefix("--"), values)]


def open_media(args: argparse.Namespace) -> tuple[list[MediaFile], str | None]:
    """The media, read once so that no model is loaded for nothing, and the text; None if there is none.

    Raises:
        RequestError: a file cannot be read, or is of a format that is not let in, or stands where the model belongs.
        ConfigError: there is no such format or limit.
    """
    if modality_of(args.model) and not Path(args.model).is_dir():
        raise RequestError(f"{args.model!r} is a media file; the model comes first, as in: demo {args.model}")
    names, words = sort_words(args.words)
    limits = MultiModalConfig(**given_fields(vars(args), [MultiModalConfig]))
    media = [file for modality, name in args.media for file in open_files(name, modality, limits)]
    media += [file for name in names for file in _open(name, limits, has_text=bool(words))]
    return media, " ".join(words) if words else None


def _open(name: str, limits: MultiModalConfig, *, has_text: bool) -> list[MediaFile]:
    try:
        return open_files(name, None, limits)
    except RequestError as error:
        if has_text and "no such file" in str(error):
            raise RequestError(f"{error} (a question with spaces must be in quotes)") from error
        raise


@contextlib.contextmanager
def loading(model: str) -> Iterator[None]:
    """Say on a terminal that the model is being loaded; the line is removed afterwards."""
    shown = sys.stderr.isatty()
    if shown:
        print(f"loading {model} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def engine_args(args: argparse.Namespace) -> dict[str, Any]:
    """The engine's options that were given; what it does is logged only if that is wanted."""
    import logging

    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(name)s: %(message)s")
    if not args.verbose:
        logging.getLogger("corellm_kernels").setLevel(logging.WARNING)  # that there are none costs half the speed
        os.environ.setdefault(
            "TRANSFORMERS_VERBOSITY", "error"
        )  # its advice is for people who call it; not imported yet
    given = given_fields(vars(args), ENGINE_CONFIGS)
    given.pop("seed", None)  # a request's own
    return given


def load_engine(args: argparse.Namespace, *, check_encoders: bool = True) -> LLMEngine:
    """Load the model for one request at a time, quietly unless told otherwise.

    Raises:
        ConfigError, CheckpointError, PluginError: it cannot be served.
    """
    from corellm.config import EngineConfig
    from corellm.engine.llm_engine import LLMEngine

    given = {"max_num_seqs": 1, **engine_args(args)}
    with loading(args.model):
        return LLMEngine(EngineConfig.from_kwargs(**given), check_encoders=check_encoders)

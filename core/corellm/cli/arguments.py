"""Arguments that every command with a model takes: the model, media and text, and the engine's options.

Knows the command line and which of its words are media; what is done with the model is the commands' own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from corellm.cli.media import MediaFile, open_file, sort_words
from corellm.config import (
    DTYPE_ALIASES,
    DTYPES,
    KV_CACHE_DTYPES,
    LOAD_FORMATS,
    MEDIA_FORMATS,
    CacheConfig,
    ModelConfig,
    SchedulerConfig,
)
from corellm.errors import RequestError

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add the model, media, the text, and how it becomes a prompt."""
    parser.add_argument("model", metavar="MODEL", help="a directory, a hub name (owner/name), `demo` or `demo-video`")
    parser.add_argument("words", metavar="FILE|PROMPT", nargs="*", default=[], help="media and the question")
    for modality, name in (("image", "an image file"), ("video", "a video file"), ("audio", "an audio file")):
        parser.add_argument(
            f"--{modality}", action=_AppendMedia, dest="media", default=[], metavar="FILE",
            help=f"{name}, whatever its name ends with; may be repeated",
        )  # fmt: skip
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="take the prompt as it is, without a chat template")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    parser.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the engine's options."""
    group = parser.add_argument_group("engine")
    glossary = {f.name: f.default for config in (ModelConfig, CacheConfig, SchedulerConfig) for f in fields(config)}
    group.add_argument(
        "--dtype",
        choices=(*DTYPES, *DTYPE_ALIASES),
        default=glossary["dtype"],
        help="precision (default: the checkpoint's)",
    )
    group.add_argument("--max-model-len", type=int, metavar="N", help="longest sequence (default: the model's)")
    group.add_argument("--adapter", metavar="DIST", help="plugin to use where several claim the model")
    group.add_argument("--revision", help="branch, tag or commit of a hub model")
    group.add_argument("--tokenizer", metavar="MODEL", help="directory or hub name with another tokenizer")
    group.add_argument(
        "--hf-overrides", type=json_object, default={}, metavar="JSON",
        help="changes of the model's configuration, e.g. '{\"text_config\": {\"sliding_window\": null}}'",
    )  # fmt: skip
    group.add_argument(
        "--load-format", choices=LOAD_FORMATS, default=glossary["load_format"],
        help="dummy for random weights, to try out speed and memory",
    )  # fmt: skip
    group.add_argument(
        "--limit-mm-per-prompt", type=json_object, default={}, metavar="JSON",
        help="most items per prompt, and for which size memory is planned, e.g. "
        "'{\"image\": {\"count\": 2, \"width\": 512}}'",
    )  # fmt: skip
    group.add_argument(
        "--mm-processor-kwargs", type=json_object, default={}, metavar="JSON",
        help="arguments of the model's processor, e.g. '{\"max_pixels\": 200704}'",
    )  # fmt: skip
    group.add_argument(
        "--media-formats", type=_names, default=MEDIA_FORMATS, metavar="NAMES",
        help=f"files to let in, e.g. jpeg,png (default: all: {', '.join(MEDIA_FORMATS)})",
    )  # fmt: skip
    group.add_argument(
        "--device", metavar="NAME", default=glossary["device"], help="cpu, cuda or cuda:N (default: auto)"
    )
    group.add_argument(
        "--attention-backend", metavar="NAME", help="triton, cpu or reference (default: the best that can run)"
    )
    group.add_argument("--no-fuse-layers", action="store_true", help="on GPUs, leave the model's layers as they are")
    group.add_argument("--kv-cache-memory", type=_memory, metavar="SIZE", help="memory for the KV cache, e.g. 2G")
    group.add_argument(
        "--gpu-memory-utilization", type=float, metavar="SHARE", default=glossary["gpu_memory_utilization"],
        help="share of a GPU's memory to use (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--kv-cache-dtype", choices=KV_CACHE_DTYPES, default=glossary["kv_cache_dtype"],
        help="type of the KV cache on GPUs (default: the model's)",
    )  # fmt: skip
    group.add_argument("--enforce-eager", action="store_true", help="on GPUs, without CUDA graphs: quicker to start")
    group.add_argument("--trust-remote-code", action="store_true", help="run Python code from the checkpoint")


class _AppendMedia(argparse.Action):
    """Collects `--image`, `--video` and `--audio` in their order."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        assert option_string is not None
        namespace.media = [*namespace.media, (option_string.removeprefix("--"), values)]


def _memory(text: str) -> int:
    """Bytes, as a number or with a unit of 1024: 512M, 2G, 1.5GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"not a size: {text!r}; write bytes, or 512M, 2G")
    number, unit = found.groups()
    return int(float(number) * 1024 ** " KMGT".index(unit.upper() or " "))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def json_object(text: str) -> dict[str, Any]:
    """Read an option's JSON object."""
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {text!r}") from error
    if not isinstance(arguments, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text!r}")
    return arguments


def open_media(args: argparse.Namespace) -> tuple[list[MediaFile], str | None]:
    """The media, read once so that no model is loaded for nothing, and the text; None if there is none.

    Raises:
        RequestError: a file cannot be read, or is of a format that is not let in.
        ConfigError: there is no such format.
    """
    names, words = sort_words(args.words)
    formats = args.media_formats
    media = [open_file(name, modality, formats) for modality, name in args.media]
    media += [_open(name, formats, has_text=bool(words)) for name in names]
    return media, " ".join(words) if words else None


def _open(name: str, formats: Collection[str], *, has_text: bool) -> MediaFile:
    try:
        return open_file(name, formats=formats)
    except RequestError as error:
        if has_text and "no such file" in str(error):
            raise RequestError(f"{error} (a question with spaces must be in quotes)") from error
        raise


def load_engine(args: argparse.Namespace, *, check_encoders: bool = True) -> LLMEngine:
    """Load the model for one request at a time, quietly unless told otherwise.

    Raises:
        ConfigError, CheckpointError, PluginError: it cannot be served.
    """
    import logging

    from corellm.config import EngineConfig
    from corellm.engine.llm_engine import LLMEngine

    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(name)s: %(message)s")
    if not args.verbose:
        os.environ.setdefault(
            "TRANSFORMERS_VERBOSITY", "error"
        )  # its advice is for people who call it; not imported yet
    config = EngineConfig.from_kwargs(
        model=args.model, dtype=args.dtype, max_model_len=args.max_model_len, adapter=args.adapter,
        revision=args.revision, kv_cache_memory=args.kv_cache_memory, trust_remote_code=args.trust_remote_code,
        device=args.device, gpu_memory_utilization=args.gpu_memory_utilization, kv_cache_dtype=args.kv_cache_dtype,
        enforce_eager=args.enforce_eager, attention_backend=args.attention_backend,
        fuse_layers=not args.no_fuse_layers,
        mm_processor_kwargs=args.mm_processor_kwargs, media_formats=args.media_formats,
        limit_mm_per_prompt=args.limit_mm_per_prompt, tokenizer=args.tokenizer, hf_overrides=args.hf_overrides,
        load_format=args.load_format, max_num_seqs=1,
    )  # fmt: skip
    return LLMEngine(config, check_encoders=check_encoders)

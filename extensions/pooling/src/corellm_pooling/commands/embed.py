"""`corellm embed MODEL --images FOLDER --texts FILE`: which text fits which image, and embeddings for other programs.

Uses `LLM` and the similarity room; what is read from the command line and how failures are counted is its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corellm.cli.arguments import add_engine, add_prompt, engine_args, loading
from corellm.cli.media import STANDARD_INPUT, files_of, modality_of, open_file, sort_words
from corellm.cli.outputs import check_plotting, check_writable
from corellm.errors import RequestError

if TYPE_CHECKING:
    from corellm.llm import LLM
    from corellm_pooling.similarity.entries import Embedded, Entry

_HELP = """\
Embed images and texts with any model, and show how alike they are: a row per image, a column per text, the cosine of
their embeddings, the best text of each image marked. Words after MODEL that are files (or end like one), folders or -
(standard input) are embedded as images, videos or audio; each other word is a text. A file or text that is wrong is
reported; the rest is done."""

_EPILOG = """\
examples:
  corellm embed demo --images images/ --texts captions.txt
  corellm embed demo star.png "a star" "a circle" --instruction "What shape is it?" --plot similarity.png
  corellm embed demo --images images/ -o embeddings.safetensors
  corellm embed demo "a red star" --format jsonl | head -c 100

exit status:
  0  all were embedded
  1  some failed, or the model did
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "embed", help="show which text fits which image, or write embeddings", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_prompt(parser, words="FILE|TEXT", meaning="media and texts")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="embed all images in a folder")
    parser.add_argument("--texts", metavar="FILE", help="embed each line of a file; - for standard input")
    parser.add_argument(
        "--instruction", metavar="TEXT", default="",
        help="a line after each image and each text: a model that generates text puts into an embedding what it would "
        "say next",
    )  # fmt: skip
    parser.add_argument(
        "--center", action="store_true",
        help="compare differences from the mean of all images, and of all texts: what they have in common is left out",
    )  # fmt: skip
    parser.add_argument("--dimensions", type=int, metavar="N", help="length of the embeddings, which are cut")
    parser.add_argument("--plot", metavar="FILE", help="draw the similarities (PNG, SVG or PDF)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the embeddings (.jsonl or .safetensors)"
    )
    parser.add_argument(
        "--format", choices=("table", "jsonl"), default="table",
        help="print the similarities, or the embeddings, one JSON object per line (default: table)",
    )  # fmt: skip
    add_engine(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Embed, print, and write what is wanted; 1 if some failed."""
    entries = _media(args), _texts(args)
    _check_outputs(args, *entries)
    from corellm.llm import LLM
    from corellm_pooling.similarity import files
    from corellm_pooling.similarity.entries import Wording, embed_entries

    given = {"runner": "pooling", **engine_args(args)}
    wording = Wording(args.instruction, args.system or "", args.raw)
    media: list[Embedded] = []
    texts: list[Embedded] = []
    with loading(args.model):
        llm = LLM(**given)
    with llm:
        for embedded in embed_entries(llm, [*entries[0], *entries[1]], wording, dimensions=args.dimensions):
            (texts if embedded.entry.modality == "text" else media).append(embedded)
            if args.format == "jsonl":
                print(files.as_json(embedded), flush=True)
        _report(args, llm, media, texts)
    if args.output is not None:
        _write(args.output, [*media, *texts])
    failed = [embedded for embedded in [*media, *texts] if embedded.error is not None]
    if failed:
        print(f"corellm embed: {len(failed)} of {len(media) + len(texts)} failed", file=sys.stderr)
    return int(bool(failed))


def _report(args: argparse.Namespace, llm: LLM, media: Sequence[Embedded], texts: Sequence[Embedded]) -> None:
    """Print and draw the similarities, where there is something to compare."""
    if not (media and texts):
        return
    from corellm.multimodal.parsing import DataParser
    from corellm_pooling.similarity.matrix import compare
    from corellm_pooling.similarity.plot import save_plot
    from corellm_pooling.similarity.terminal import print_matrix

    matrix = compare(media, texts, center=args.center)
    if args.format == "table":
        print_matrix(matrix)
    if args.plot:
        parts = (args.model, args.instruction and f"“{args.instruction}”", "centered" if args.center else "")
        load = DataParser(llm.engine.config.multimodal).load_image
        save_plot(matrix, ", ".join(filter(None, parts)), load, args.plot)
        print(f"corellm embed: drew {args.plot}", file=sys.stderr)


def _media(args: argparse.Namespace) -> list[Entry]:
    """The media files, which are not read yet.

    Raises:
        RequestError: a folder has no images, or a file is missing.
    """
    words: list[tuple[str | None, str]] = [*args.media, *((None, word) for word in sort_words(args.words)[0])]
    if args.images is not None:
        if not args.images.expanduser().is_dir():
            hint = "a file; give it without --images" if args.images.expanduser().is_file() else "no such folder"
            raise RequestError(f"--images {args.images}: {hint}")
        words.insert(0, ("image", str(args.images)))
    return [entry for modality, word in words for entry in _entries(word, modality)]


def _entries(word: str, modality: str | None) -> list[Entry]:
    """A file, those of a folder, or standard input."""
    from corellm_pooling.similarity.entries import Entry, printable

    if word == STANDARD_INPUT:
        file = open_file(word, modality)
        return [Entry(file.modality, word, "standard input", file.content)]
    entries = []
    for name in files_of(word, modality):
        path = Path(name).expanduser()
        if not path.is_file():
            raise RequestError(f"no such file: {name!r} (a text that looks like a file goes into a file of --texts)")
        shown = name if name == word else path.name
        entries.append(Entry(modality or modality_of(name) or "image", str(path), printable(shown)))
    return entries


def _texts(args: argparse.Namespace) -> list[Entry]:
    """The texts of the file, then those of the command line.

    Raises:
        RequestError: the file cannot be read, or has none.
    """
    from corellm_pooling.similarity.entries import Entry, printable

    lines = [] if args.texts is None else [line.strip() for line in _read(args.texts).splitlines() if line.strip()]
    if args.texts is not None and not lines:
        raise RequestError(f"--texts {args.texts}: it has no text; write one per line")
    return [Entry("text", text, printable(text)) for text in [*lines, *sort_words(args.words)[1]]]


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).expanduser().read_text(encoding="utf-8-sig")
    except OSError as error:
        hint = "; give a text itself without --texts" if isinstance(error, FileNotFoundError) else ""
        raise RequestError(f"--texts {name}: {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"--texts {name}: it is not text in UTF-8; save it in that encoding") from error


def _check_outputs(args: argparse.Namespace, media: Sequence[Entry], texts: Sequence[Entry]) -> None:
    """Refuse what cannot be shown or written, before the model is loaded.

    Raises:
        RequestError: there is nothing to embed, or nothing to compare.
        ConfigError: a file cannot be written.
        MissingExtraError: the drawing needs matplotlib.
    """
    from corellm_pooling.similarity.files import FORMATS

    if not (media or texts):
        raise RequestError("nothing to embed; give --images FOLDER and --texts FILE, or files and texts")
    compares = args.plot or args.center or (args.format == "table" and args.output is None)
    if compares and not (media and texts):
        side = "files" if media else "texts"
        missing = "texts (--texts FILE)" if media else "images (--images FOLDER)"
        raise RequestError(f"the {side} have nothing to be compared with; give {missing}, or print with --format jsonl")
    if args.center and min(len(media), len(texts)) < 2:
        raise RequestError("--center needs at least two files and two texts; leave it out")
    if args.plot:
        check_plotting(args.plot)
    if args.output is not None:
        if args.output.suffix not in FORMATS:
            raise RequestError(f"-o writes {' or '.join(FORMATS)}, got {str(args.output)!r}")
        check_writable(args.output)


def _write(path: Path, all_embedded: Sequence[Embedded]) -> None:
    from corellm_pooling.similarity import files

    try:
        files.write(all_embedded, path)
    except OSError as error:
        raise RequestError(f"-o {path}: {error.strerror or error}") from error
    count = sum(embedded.error is None for embedded in all_embedded)
    print(f"corellm embed: wrote {count} embeddings to {path}", file=sys.stderr)

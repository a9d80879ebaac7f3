"""`corellm quantize MODEL -o DIR`: a checkpoint with weights of 4 or 8 bits, which other engines read, too."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

_HELP = """\
Write a checkpoint anew with weights of fewer bits: the linear layers of the text decoder. Encoders, projectors,
embeddings and the output layer stay as they are. The result is in the format compressed-tensors (pack-quantized), which
corellm, vLLM and transformers (with the package compressed-tensors) load without an argument. Weights are rounded to
the nearest: of several ranges each group takes the one with the least error. No text or image is needed. One weight
after another is read, rounded and written, so memory is needed for the largest one alone. The folder gets its name
when all of it is written."""

_EPILOG = """\
examples:
  corellm quantize demo -o demo-4-bits
  corellm quantize llava-hf/llava-1.5-7b-hf -o llava-4-bits --8-bits down_proj --8-bits lm_head
  corellm quantize ./my-checkpoint -o my-checkpoint-8-bits --bits 8
  corellm quantize ./my-checkpoint -o smaller --group 128 --zeros --ignore 'layers\\.0\\.'

PATTERN is a regular expression, found anywhere in the name that a layer has in transformers, such as
model.language_model.layers.0.mlp.down_proj."""
_MOST_NAMES = 5
"""So many files are named."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "quantize", help="write a checkpoint with weights of 4 or 8 bits", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="a directory, a hub name (owner/name), `demo` or `demo-video`")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", required=True, help="the folder to write")
    parser.add_argument(
        "--bits", type=int, choices=(4, 8), default=4,
        help="of a weight: 4 in groups with a scale, or 8 with a scale for each output (default: 4)",
    )  # fmt: skip
    parser.add_argument(
        "--group", type=int, choices=(32, 64, 128), default=64,
        help="weights of 4 bits that share a scale: fewer are more exact, and larger (default: 64); layers whose "
        "inputs are no whole groups stay as they are",
    )  # fmt: skip
    parser.add_argument(
        "--zeros", action="store_true",
        help="weights of 4 bits that share a scale share a zero, too: less error; corellm and vLLM read it, "
        "transformers with compressed-tensors 0.20 does not",
    )  # fmt: skip
    parser.add_argument(
        "--8-bits", dest="eight", metavar="PATTERN", action="append", default=[],
        help="layers that get 8 bits; only so is the output layer (lm_head) rounded; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--ignore", metavar="PATTERN", action="append", default=[],
        help="layers that stay as they are; may be repeated",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace the checkpoint that DIR is")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="let the checkpoint's own code make its configuration"
    )
    parser.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint, and say what it is."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from tqdm.auto import tqdm

    from corellm_quantization.writing.checkpoint import write_quantized
    from corellm_quantization.writing.choice import Wanted

    wanted = Wanted(args.bits, args.group, args.eight, args.ignore, args.zeros)
    with tqdm(unit="B", unit_scale=True, desc="quantize", disable=None, leave=False, dynamic_ncols=True) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        written = write_quantized(
            args.model, args.output, wanted,
            force=args.force, trust_remote_code=args.trust_remote_code, progress=show,
        )  # fmt: skip
    print(f"{args.output}: {_size(written.bytes_after)} of weights, before {_size(written.bytes_before)}")
    print(written.choice.shown())
    if written.left_out:
        print(f"not copied: {_listed(written.left_out)}")
    return 0


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many others there are."""
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _size(count: int) -> str:
    """Return bytes in the largest unit."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6)):
        if count >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count / 1000:.0f} kB"

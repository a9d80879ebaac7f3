"""The `corellm` command: one file per subcommand, each with `add_parser(subparsers)`; extensions bring more.

Starting up imports nothing heavy; errors of the typed tree become one line and exit status 1, a traceback only with
`--traceback`.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from corellm import __version__
from corellm.cli import plugins, run
from corellm.errors import CorellmError, PluginError, install_hint

_DESCRIPTION = "Run multimodal language models; every model family is a plugin."
_EXAMPLES = """\
corellm run demo image.png "What number is written here?"
corellm run llava-hf/llava-1.5-7b-hf --image cat.jpg "What is the cat doing?"
corellm serve demo
corellm batch -i requests.jsonl -o results.jsonl --model demo
corellm embed demo --images images/ --texts captions.txt --plot similarity.png
corellm inspect demo image.png "What number is written here?" --html report.html
corellm try llava-hf/llava-interleave-qwen-0.5b-hf
corellm quantize demo -o demo-4-bits
corellm plugins
corellm new-plugin toyvl --like llava
"""


COMMANDS_OF_EXTENSIONS = {
    "serve": "server",
    "batch": "server",
    "bench": "server",
    "embed": "pooling",
    "inspect": "testing",
    "new-plugin": "testing",
    "quantize": "quantization",
    "try": "testing",
}
"""Folders of `extensions/` in a checkout, by the command that each brings: for people who lack one."""


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line instead of the whole usage, and what may have been meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; choose from {', '.join(known)}"
        if isinstance(action, argparse._SubParsersAction):
            if folder := COMMANDS_OF_EXTENSIONS.get(value):
                hint = f": it comes with {install_hint(folder)}"
            raise argparse.ArgumentError(None, f"there is no command {value!r}{hint}")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, extensions' commands included."""
    parser = _Parser(prog="corellm", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"corellm {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (run, plugins):
        command.add_parser(subparsers)
    _add_extension_commands(_subparsers(parser))
    examples = [line for line in _EXAMPLES.splitlines() if line.split()[1] in subparsers.choices]
    parser.epilog = "\n  ".join(["examples:", *examples])
    return parser


def _add_extension_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of extensions; a broken one is a warning, and the others are added."""
    from corellm.plugin.extensions import call_extensions, load_working_extensions

    manager = load_working_extensions(_warn)
    for _ in call_extensions(
        "register_commands", _is_nothing, manager=manager, on_failure=_warn, subparsers=subparsers
    ):
        pass


def _is_nothing(result: object) -> bool:
    return result is None


def _warn(error: PluginError) -> None:
    print(f"corellm: warning: {error}", file=sys.stderr)


def _subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _reworded(parser: argparse.ArgumentParser, given: list[str]) -> list[str]:
    """A command line as its command takes it: with words in place of those that it only understands (`reword`)."""
    command = _subparsers(parser).choices.get(given[0]) if given else None
    reword = None if command is None else command.get_default("reword")
    return given if reword is None else [given[0], *reword(command, given[1:])]


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse, with words and options in any order: argparse alone takes no word after an option."""
    given = _reworded(parser, list(sys.argv[1:] if argv is None else argv))
    cut = given.index("--") if "--" in given else len(given)  # after it everything is text
    args, rest = parser.parse_known_args(given[:cut])
    unknown = rest if not hasattr(args, "words") else [word for word in rest if _is_option(word)]
    if unknown:
        command = _subparsers(parser).choices[args.command]
        if not _is_option(unknown[0]):
            command.error(
                f"{unknown[0]!r:.100} is one word too many; several values of an option have commas between them"
            )
        known = {option.lstrip("-"): option for action in command._actions for option in action.option_strings}
        near = difflib.get_close_matches(unknown[0].partition("=")[0].lstrip("-"), known, n=1, cutoff=0.7)
        command.error(f"unknown option {unknown[0]}" + (f"; did you mean {known[near[0]]}?" if near else ""))
    words = rest + given[cut + 1 :]
    if words and hasattr(args, "words"):
        args.words += words
    return args


def _is_option(word: str) -> bool:
    """Whether a word is an option that no command knows; `-` is standard input, and text may begin with a dash."""
    return word.startswith("-") and word != "-" and " " not in word


def _open_closed_streams() -> None:
    """Open nothing in place of each standard stream that the caller closed (`<&-`).

    Otherwise Python has None in its place, and the next file that is opened gets its number, which children inherit.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process lives


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    _open_closed_streams()
    parser = build_parser()
    args = _parse(parser, argv)
    if not hasattr(args, "run"):
        parser.error(f"the extension that brings {args.command!r} gave it no `run` (set_defaults)")
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except CorellmError as error:
        if args.traceback:
            raise
        print(f"corellm: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe went away, e.g. `corellm plugins | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or flushing at exit would fail again
        return 1
    finally:
        gc.freeze()  # collecting garbage among a million imported objects at exit would take a second
    return status

"""`corellm new-plugin NAME`: begin a plugin of your own as a copy of one that is installed."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corellm_testing.scaffold.plugin import NewPlugin

_HELP = """\
Write a plugin for a model of your own: a distribution of its own with adapter, tiny random checkpoint, contract tests
and README, begun as a copy of an installed plugin whose family works most like yours. It passes the contract as it is;
change it hook by hook, and the contract says what is still missing.

  llava        a placeholder becomes one token per patch of an image; the one to take if in doubt
  blip2        no placeholder: an image's tokens go before the prompt
  fuyu         images of any size, one line of patches after the other with separators, before the prompt
  qwen_vl      images and videos of any size, a processor and positions of its own
  qwen_audio   audio
  internvl     an image becomes tiles
  gemma3       as llava; an image's tokens see each other
  chameleon    an image becomes tokens of the vocabulary, which the model must not write
  florence2    an encoder-decoder
  mllama       a decoder that attends to images beside the prompt

Any other installed plugin may be named, too; `corellm plugins` lists them."""

_EPILOG = """\
examples:
  corellm new-plugin toyvl                             # writes corellm-toyvl/, like llava
  corellm new-plugin toyvl --like qwen_vl --into ~/code/toyvl
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "new-plugin", help="begin a plugin of your own", description=_HELP, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "name", metavar="NAME", help="toyvl makes the distribution corellm-toyvl, package corellm_toyvl"
    )
    parser.add_argument("--like", metavar="PLUGIN", default="llava", help="what to copy (default: %(default)s)")
    parser.add_argument("--into", metavar="DIR", type=Path, help="folder to make (default: ./corellm-NAME)")
    parser.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write it, and say what to do next."""
    from corellm_testing.scaffold.names import PluginName
    from corellm_testing.scaffold.original import find_original
    from corellm_testing.scaffold.plugin import make_plugin

    name = PluginName.parse(args.name)
    plugin = make_plugin(name, find_original(args.like))
    folder = (args.into or Path(name.distribution)).expanduser()
    plugin.write(folder)
    print(_next_steps(plugin, folder))
    return 0


def _next_steps(plugin: NewPlugin, folder: Path) -> str:
    """What was written, and commands that work where the reader is."""
    name, original, architectures = plugin.name, plugin.original, list(plugin.architectures.values())
    module, tiny = folder / "src" / name.package, folder / "tiny"
    first, then, last = module / "tiny.py", module / "__init__.py", folder / "pyproject.toml"
    width = max(len(str(path)) for path in (first, then, last))
    write_tiny = f"from {name.package}.tiny import make_tiny_checkpoint as make; make({json.dumps(str(tiny))})"
    media = {"image": "image.png", "video": "video.mp4", "audio": "audio.wav"}[original.modality]
    left_out = f" (not copied: {', '.join(original.left_out)})" if original.left_out else ""
    return f"""\
Wrote {folder}: the distribution {name.distribution}, a copy of {original.distribution} {original.version}{left_out}.
It serves {", ".join(architectures)}.

Install it and run the contract:
  {_command("pip", "install", "-e", f"{folder}[test]")}
  {_command("pytest", folder)}

Look at what it does, on a tiny random checkpoint and a file of yours:
  {_python()} -c {shlex.quote(write_tiny)}
  {_command("corellm", "inspect", tiny, media, "What is this?")}

Make it yours, in this order:
  {first!s:{width}}  your model's configuration, tokenizer and processor
  {then!s:{width}}  the adapter, hook by hook
  {last!s:{width}}  the architecture, as your checkpoints' config.json names it"""


def _command(module: str, *arguments: object) -> str:
    return f"{_python()} -m {shlex.join([module, *map(str, arguments)])}"


def _python() -> str:
    """The interpreter that runs this, as short as it may be called."""
    found = shutil.which("python")
    here = found is not None and Path(found).parent == Path(sys.executable).parent
    return "python" if here else shlex.quote(sys.executable)

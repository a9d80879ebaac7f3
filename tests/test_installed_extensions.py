"""Extensions are found and called in order; errors name the one at fault, and the others still work."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM, cli
from corellm.attention.registry import select_backend
from corellm.cli import main
from corellm.errors import BrokenPluginError, ConfigError, ContractError, PluginConflictError, PluginError
from corellm.plugin.extensions import call_extensions, load_extensions
from tests.fixtures import random_image

Install = Callable[..., None]
HEAD = "import torch\nfrom corellm.hookspecs import hookimpl\n"
CPU = torch.device("cpu")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install(name, body, functions)`: a distribution whose extension, a class, has that body."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules: list[str] = []

    def make(name: str, body: str, functions: str = "") -> None:
        module = name.replace("-", "_")
        modules.append(module)
        sys.modules.pop(module, None)  # another test's
        code = HEAD + functions + "class Extension:\n" + textwrap.indent(body, "    ")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[corellm.extensions]\nmine = {module}:Extension\n")
        load_extensions.cache_clear()

    yield make
    for module in modules:
        sys.modules.pop(module, None)
    load_extensions.cache_clear()


def hook(name: str, body: str, arguments: str = "self", options: str = "") -> str:
    return f"@hookimpl{options}\ndef {name}({arguments}):\n    {body}\n"


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("def __init__(self): 1 / 0", BrokenPluginError, "loaded: ZeroDivisionError.*toy.py"),
        (hook("register_samplng", "return None"), ContractError, "register_samplng is no hook.*'register_sampling'"),
        (hook("register_sampling", "return None", "self, devise"), ContractError, "no argument 'devise'; .* device"),
        (hook("fuse_layers", "yield", options="(wrapper=True)"), ContractError, "fuse_layers is a wrapper; hooks of"),
        (hook("fuse_layers", "return []", options="(wrapper=True)"), ContractError, "fuse_layers is a wrapper"),
        ("def fuse_layers(self): return []", ContractError, "fuse_layers .*@hookimpl"),
    ],
)
def test_what_cannot_be_loaded(install: Install, body: str, error: type[PluginError], words: str) -> None:
    """The error names the distribution and how to remove it."""
    install("toy", body)
    with pytest.raises(error, match=rf"(?s)'mine' of toy.*{words}.*pip uninstall toy"):
        load_extensions()


@pytest.mark.parametrize(
    ("name", "body", "error", "words"),
    [
        ("register_sampling", "1 / 0", BrokenPluginError, "failed: ZeroDivisionError.*toy.py"),
        ("register_sampling", "return 'toy:sample'", ContractError, "must return Sample | None, not str 'toy:sample'"),
        ("register_constraints", "return []", ContractError, "must return dict[str, MakeConstraint] | None, not list"),
        ("register_merging", "return 3", ContractError, "must return MergeRows | None, not int 3"),
        ("fuse_layers", "return '3 x thing'", ContractError, "must return list[str] | None, not str '3 x thing'"),
        ("wrap_adapter", "return 'x'", ContractError, "it wraps nothing"),
        ("register_attention_backends", "return ['x']", ContractError, "must return dict[str, str] | None, not list"),
        ("register_attention_backends", "return {'x': 'nowhere:X'}", ContractError, "'nowhere:X'.* No module named"),
        ("register_attention_backends", "return {'x': 'toy:Extension'}", ContractError, "is no .*AttentionBackend"),
        ("register_attention_backends", "return {'cpu': 'toy:X'}", ContractError, "both offer"),
    ],
)
def test_a_wrong_result_is_its_extensions_fault(
    install: Install, name: str, body: str, error: type[PluginError], words: str
) -> None:
    """The error names the extension, not the checkpoint."""
    install("toy", hook(name, body))
    with pytest.raises(error) as raised:
        LLM("demo")
    message = str(raised.value)
    assert "'mine' of toy" in message
    for word in words.split(".*"):
        assert word in message


def test_others_go_before_what_comes_last(install: Install) -> None:
    """Extensions that return None are left out."""
    install("a-first", hook("register_merging", "return min"))
    install("b-last", hook("register_merging", "return max", options="(trylast=True)"))
    install("c-none", hook("register_merging", "return None"))
    results = dict(call_extensions("register_merging", callable, device=CPU))
    assert list(results.values()) == [min, max]
    assert list(results) == ["the extension 'mine' of a-first", "the extension 'mine' of b-last"]


def test_order_is_that_of_names(install: Install) -> None:
    """Whatever the order of files; `tryfirst` comes before."""
    for name in ("m", "z", "a"):
        install(name, hook("register_merging", f"return {'min' if name == 'm' else 'max'}"))
    install("x", hook("register_merging", "return sum", options="(tryfirst=True)"))
    names = [name.split()[-1] for name, _ in call_extensions("register_merging", callable, device=CPU)]
    assert names == ["x", "a", "m", "z"]


def test_an_argument_that_goes_is_given_for_one_more_version(install: Install) -> None:
    """An extension of the version before loads, is told, and gets what it got."""
    install("toy", hook("fuse_layers", "return [str(quantization)]", "self, model, quantization"))
    model = torch.nn.Module()
    given: dict[str, Any] = {"model": model, "device": CPU, "dtype": torch.float32, "quantize": None, "kept": None}
    with pytest.warns(FutureWarning, match="quantize rounds a layer"):
        results = dict(call_extensions("fuse_layers", lambda result: True, quantization="int8", **given))
    assert results["the extension 'mine' of toy"] == ["int8"]


def test_one_object_under_two_names(install: Install, tmp_path: Path) -> None:
    install("toy", "", functions="")
    (tmp_path / "toy.py").write_text(HEAD + "class Kind: pass\nExtension = Kind()\n")
    (tmp_path / "toy-1.0.dist-info" / "entry_points.txt").write_text(
        "[corellm.extensions]\nmine = toy:Extension\nagain = toy:Extension\n"
    )
    with pytest.raises(ContractError, match=r"the extension '.*' of toy: .*already registered"):
        load_extensions()


def test_running_out_of_memory_is_not_the_extensions_fault(install: Install) -> None:
    install("toy", hook("fuse_layers", "raise torch.OutOfMemoryError('CUDA out of memory')"))
    with pytest.raises(ConfigError, match=r"cpu .*weights"):
        LLM("demo")


def test_the_others_are_called_all_the_same(install: Install) -> None:
    install("good", hook("register_merging", "return min"))
    install("bad", hook("register_merging", "1 / 0", options="(tryfirst=True)"))
    failures: list[PluginError] = []
    found = [
        result for _, result in call_extensions("register_merging", callable, on_failure=failures.append, device=CPU)
    ]
    assert found == [min]
    assert "of bad: register_merging" in str(failures[0])


BREAKS = [
    ("1 / 0", "register_commands failed: ZeroDivisionError"),
    ("subparsers.add_parser('run')", "conflicting subparser"),
    ("return 3", "must return None"),
]


@pytest.mark.parametrize(("body", "words"), BREAKS)
def test_commands_go_on_without_a_broken_one(
    install: Install, capsys: pytest.CaptureFixture[str], body: str, words: str
) -> None:
    install("toy", hook("register_commands", body, "self, subparsers"))
    assert main(["plugins"]) == 0
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.startswith("corellm: warning: ")
    assert "'mine' of toy" in told.err
    assert ["toy", "1.0", "mine"] in [line.split() for line in told.out.splitlines()]


def test_a_broken_one_takes_no_command_of_others(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where it cannot be imported, or ends the process when it is."""
    install("broken", "", "import nonsense\n")
    install("quitter", "", "raise SystemExit(3)\n")
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    told = capsys.readouterr()
    assert "--max-num-seqs" in told.out
    assert "'mine' of broken" in told.err
    assert "'mine' of quitter" in told.err


def test_a_command_of_corellms_own_is_kept(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the name of the stranger's distribution that registers it, too."""
    install("a-stranger", hook("register_commands", "subparsers.add_parser('serve')", "self, subparsers"))
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    told = capsys.readouterr()
    assert "--max-num-seqs" in told.out
    assert "'mine' of a-stranger" in told.err
    assert "conflicting subparser" in told.err


def test_two_uses_of_a_checkpoint(install: Install, tiny_llava: Path) -> None:
    """Neither wins silently."""
    for name in ("first", "second"):
        arguments = "self, config, path, architectures"
        install(
            name, hook("offer_use", "return ModelUse()", arguments), "from corellm.loading.model_use import ModelUse\n"
        )
    with pytest.raises(PluginConflictError, match="'mine' of first and the extension 'mine' of second offer a use"):
        LLM(str(tiny_llava))


def test_a_command_without_a_function(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("toy", hook("register_commands", "subparsers.add_parser('hey')", "self, subparsers"))
    with pytest.raises(SystemExit):
        main(["hey"])
    assert "'hey' gave it no `run`" in capsys.readouterr().err


def test_a_broken_one_is_listed_with_its_traceback(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("toy", "def __init__(self): 1 / 0")
    assert main(["plugins"]) == 1
    out = capsys.readouterr().out
    assert "toy is broken:" in out
    assert re.findall(r'File ".*/(.+?)", line', out) == ["toy.py"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("None", "it returned NoneType"),
        ("logits.argmax(-1)", "it returned torch.int64 [1]"),
        ("(logits.argmax(-1).float(), logits.amax(-1))", "it returned torch.float32 [1], torch."),
        ("(logits.argmax(-1).repeat(2), logits.amax(-1))", "it returned torch.int64 [2], torch."),
    ],
)
def test_sampling_that_gives_no_tokens(install: Install, body: str, words: str) -> None:
    """An error of the one request."""
    install("toy", hook("register_sampling", f"return lambda logits, *parameters: {body}", "self, device"))
    with LLM("demo") as llm:
        (output,) = llm.generate(["Hello"], on_error="return")
        assert isinstance(output.error, ContractError)
        assert words in str(output.error)


FUNCTIONS = """
def sample(logits, temperature, top_k, top_p, min_p, uniforms, edits):
    return torch.full_like(logits.argmax(-1), 7), logits.amax(-1)

def merge(inputs_embeds, embeddings, counts):
    merged.append(len(embeddings))

merged = []
"""


def test_sampling_and_merging_are_called(install: Install) -> None:
    """With the arguments of their protocols."""
    body = hook("register_sampling", "return sample", "self, device")
    install("toy", body + hook("register_merging", "return merge", "self, device"), FUNCTIONS)
    with LLM("demo") as llm:
        prompt = {"prompt": "<image> a", "multi_modal_data": {"image": random_image(40, 30, 1)}}
        tokens = llm.generate([prompt])[0].outputs[0].token_ids
    assert set(tokens) == {7}
    assert sys.modules["toy"].merged == [64]


def test_backends_are_chosen_by_name() -> None:
    assert select_backend(CPU, torch.float32, "reference").name == "reference"


@pytest.mark.parametrize("command", cli.COMMANDS_OF_EXTENSIONS)
def test_a_command_of_a_missing_extension(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what to install; the help shows no example of it."""
    monkeypatch.setattr(cli, "_add_extension_commands", lambda subparsers: None)
    with pytest.raises(SystemExit, match="2"):
        main([command])
    assert f"./extensions/{cli.COMMANDS_OF_EXTENSIONS[command]}" in capsys.readouterr().err
    assert f"corellm {command}" not in cli.build_parser().format_help()


def test_commands_of_extensions_are_known_where_they_are_missing() -> None:
    """The table of commands has those of the checkout's own extensions; each is there once they are installed."""
    own = {"run", "plugins"}
    assert cli._subparsers(cli.build_parser()).choices.keys() == own | cli.COMMANDS_OF_EXTENSIONS.keys()

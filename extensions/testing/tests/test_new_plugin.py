"""`corellm new-plugin`: copies that are plugins of their own, complete, and as good as what they were copied from."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corellm import LLM, SamplingParams
from corellm.cli import main
from corellm.hookspecs import CONTRACT_VERSION
from corellm_testing.items import make_audio, make_image, make_video
from tests.examples.installing import installed, pretend

TEMPLATE = Path(__file__).resolve().parents[3] / "examples" / "plugin-template"
FAMILIES = {
    **dict.fromkeys(("llava", "fuyu", "blip2", "internvl", "gemma3", "chameleon", "florence2", "mllama"), "image"),
    "qwen_vl": "video",
    "qwen_audio": "audio",
}
"""What to copy, and of what a prompt to the copy is."""
ITEMS: dict[str, Callable[[], Any]] = {
    "image": lambda: make_image(50, 40, 1),
    "video": lambda: make_video(6, 64, 48, 1),
    "audio": lambda: make_audio(4000, 16_000, 1),
}


@dataclass(frozen=True)
class Copy:
    """A plugin that the command wrote."""

    folder: Path
    package: str
    printed: str

    @property
    def pyproject(self) -> dict[str, Any]:
        """What its distribution says of itself."""
        return tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))

    @property
    def architectures(self) -> list[str]:
        """What it serves."""
        return list(self.pyproject["project"]["entry-points"]["corellm.models"])

    def source(self, module: str) -> Path:
        """A module's file."""
        return self.folder / "src" / self.package / f"{module}.py"


Write = Callable[..., Copy]


@pytest.fixture
def copy(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """`copy(like, name=...)`: run the command, and have the result installed until the test ends."""
    packages: set[str] = set()

    def run(like: str, name: str | None = None) -> Copy:
        name = name or f"my-{like}"
        folder = tmp_path / name
        assert main(["new-plugin", name, "--like", like, "--into", str(folder)]) == 0
        for entry in installed(folder, tmp_path / "metadata"):
            monkeypatch.syspath_prepend(str(entry))
        (package,) = (folder / "src").iterdir()
        packages.add(package.name)
        return Copy(folder, package.name, capsys.readouterr().out)

    yield run
    for module in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[module]


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example plugin is installed."""
    for entry in installed(TEMPLATE, tmp_path / "template"):
        monkeypatch.syspath_prepend(str(entry))


def generate(checkpoint: Path, modality: str) -> tuple[list[int], list[int]]:
    """Prompt and continuation of a question about an item."""
    message = {"role": "user", "content": [{"type": modality, modality: ITEMS[modality]()}, "What is this?"]}
    with LLM(str(checkpoint), dtype="float32") as llm:
        (output,) = llm.chat([message], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    return list(output.prompt_token_ids), list(output.outputs[0].token_ids)


def same_outputs(copy: Copy, like: str, modality: str, where: Path) -> None:
    """The tiny checkpoints of a copy and of its original, of the same seed, give the same tokens."""
    ours, theirs = (importlib.import_module(f"{p}.tiny") for p in (copy.package, f"corellm_{like}"))
    for architecture in copy.architectures:
        several = len(copy.architectures) > 1
        original = {"architecture": architecture.removeprefix("MyQwenVl")} if several else {}
        chosen = {"architecture": architecture} if several else {}
        checkpoint = ours.make_tiny_checkpoint(where / architecture, 3, **chosen)
        assert json.loads((checkpoint / "config.json").read_text())["architectures"] == [architecture]
        tokens = generate(checkpoint, modality)
        assert tokens == generate(theirs.make_tiny_checkpoint(where / f"of {architecture}", 3, **original), modality)
        assert len(set(tokens[1])) > 2


@pytest.mark.parametrize(("like", "modality"), FAMILIES.items())
def test_a_copy_generates_as_its_original(copy: Write, tmp_path: Path, like: str, modality: str) -> None:
    """Its tiny checkpoints name its own architectures, load by them, and give the original's tokens."""
    same_outputs(copy(like), like, modality, tmp_path)


@pytest.mark.usefixtures("template")
def test_a_strangers_plugin_can_be_copied(copy: Write, tmp_path: Path) -> None:
    """Any installed plugin will do: the example's own configuration, processor and model go under the new name."""
    made = copy("patchtalker")
    same_outputs(made, "patchtalker", "image", tmp_path)
    assert made.architectures == ["MyPatchtalkerForCausalLM"]
    assert "class MyPatchtalkerForCausalLM(nn.Module):" in made.source("model").read_text()


@pytest.mark.parametrize("like", FAMILIES)
def test_a_copy_is_a_plugin_of_its_own(copy: Write, capsys: pytest.CaptureFixture[str], like: str) -> None:
    """Listed without fault; nothing of it is called as the original, and what transformers calls so still is."""
    made = copy(like, "toyvl")
    assert main(["plugins", "--json"]) == 0
    rows = {row["distribution"]: row for row in json.loads(capsys.readouterr().out)}
    row = rows["corellm-toyvl"]
    assert (sorted(row["architectures"]), row["contract"]) == (sorted(made.architectures), str(CONTRACT_VERSION))
    original = importlib.import_module(f"corellm_{like}")
    for path in made.folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert f"corellm_{like}" not in text, path
        quoted = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        assert not set(quoted) & set(rows[f"corellm-{like.replace('_', '-')}"]["architectures"]), path
        if like != "qwen_vl":  # its two adapters keep their names
            names = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
            assert not [name for name in names if original.__all__[0] in name], path
    if like == "llava":
        assert "transformers.LlavaForConditionalGeneration(config)" in made.source("tiny").read_text()


def test_what_is_written(copy: Write) -> None:
    """A distribution that can be built, tested and published, and steps to take with the paths that there are."""
    made = copy("qwen_audio", "ToyHearing")
    assert {str(path.relative_to(made.folder)) for path in made.folder.rglob("*") if path.is_file()} == {
        ".github/workflows/test.yml", ".gitignore", "LICENSE", "README.md", "pyproject.toml", "tests/test_contract.py",
        *(f"src/corellm_toyhearing/{name}" for name in ("__init__.py", "contract.py", "py.typed", "tiny.py")),
    }  # fmt: skip
    project = made.pyproject["project"]
    assert project["name"] == "corellm-toyhearing"
    assert project["entry-points"]["corellm.models"] == {
        "ToyHearingForConditionalGeneration": "corellm_toyhearing:ToyHearing"
    }
    assert {"corellm>=0.2,<0.3", "corellm-media>=0.2,<0.3"} <= set(project["dependencies"])
    assert project["optional-dependencies"]["test"] == ["corellm-testing>=0.2,<0.3"]
    assert "copy of corellm-qwen-audio" in made.source("__init__").read_text()
    for step in (
        f"-m pip install -e '{made.folder}[test]'",
        f"-m pytest {made.folder}",
        f"-m corellm inspect {made.folder / 'tiny'} audio.wav",
        str(made.source("tiny")),
    ):
        assert step in made.printed


@pytest.mark.parametrize("like", FAMILIES)
def test_copies_are_formatted(copy: Write, like: str) -> None:
    """As ruff does it, by the settings they come with, whatever the length of the name."""
    for name in ("t", "a-name-of-thirty-two-characters1"):
        made = copy(like, name)
        command = [sys.executable, "-m", "ruff", "format", "--check", "--no-cache", str(made.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


STRANGERS = {"stranger": "nowhere.at", "single": "single_module", "bare": "bare_package", "broken": "broken_package"}
"""Distributions that cannot be copied, and the modules of their adapters."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my plugin!"], "'my plugin!' is no name"),
        (["2vl"], "'2vl' is no name"),
        (["none"], "'none' is no name"),
        (["x" * 40], "too long"),
        (["fuyu"], "corellm-fuyu 0.1.0 is installed already; choose another name"),
        (["Corellm_Fuyu"], "corellm-fuyu 0.1.0 is installed already"),
        (["kernels"], "corellm_kernels is installed"),
        (["Qwen2Audio", "--like", "llava"], "Qwen2AudioForConditionalGeneration, which corellm-qwen-audio"),
        (["mapping"], "Mapping means something"),
        (["toyvl", "--like", "emu"], "one of those"),
        (["toyvl", "--like", "lava"], "did you mean 'corellm-llava'?"),
        (["toyvl", "--like", "emu"], "corellm-qwen-audio, corellm-qwen-vl"),
        (["toyvl", "--into", "full"], "full is there"),
        (["toyvl", "--into", "full/file"], "full/file is there"),
        (["toyvl", "--into", "full/file/below"], "full/file/below cannot be written: Not a directory"),
        (["toyvl", "--like", "stranger"], "stranger 1.0: nowhere.at cannot be found"),
        (["toyvl", "--like", "single"], "single_module is no package"),
        (["toyvl", "--like", "bare"], "no module tiny"),
        (["toyvl", "--like", "broken"], "bad.py cannot be read: invalid syntax"),
    ],
)
def test_mistakes_get_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str],
    message: str,
) -> None:  # fmt: skip
    """Names that are none or taken, folders that are full, plugins that cannot be copied: nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("something")
    for name, module in STRANGERS.items():
        pretend(tmp_path / "strangers", name, {f"{name.title()}ForCausalLM": f"{module}:Adapter"})
    (tmp_path / "strangers" / "single_module.py").write_text("")
    for package, module in (("bare_package", "__init__"), ("broken_package", "bad")):
        (tmp_path / "strangers" / package).mkdir()
        (tmp_path / "strangers" / package / f"{module}.py").write_text("def" if module == "bad" else "")
    monkeypatch.syspath_prepend(str(tmp_path / "strangers"))
    assert main(["new-plugin", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("corellm: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "strangers"]


def test_a_copy_can_be_copied(copy: Write) -> None:
    """And names its architecture once."""
    copy("llava", "first")
    text = copy("first", "second").source("tiny").read_text()
    assert text.count("set_architecture(") == 1
    assert 'set_architecture(path, "SecondForConditionalGeneration")' in text


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """Which plugin to begin from, and examples."""
    with pytest.raises(SystemExit):
        main(["new-plugin", "--help"])
    out = capsys.readouterr().out
    assert "corellm new-plugin toyvl --like qwen_vl" in out
    assert all(f"  {like} " in out for like in FAMILIES)

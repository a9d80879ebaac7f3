"""New plugins from sources of any layout: what is copied, what is renamed, what stays."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path

import pytest

from corellm_testing.scaffold.names import PluginName
from corellm_testing.scaffold.original import find_original
from corellm_testing.scaffold.plugin import NewPlugin, make_plugin
from tests.examples.installing import pretend

SOURCES = {
    "talk/vision/__init__.py": """\
from __future__ import annotations

from talk.vision.parts.adapter import Talk

__all__ = ["Talk"]
""",
    "talk/vision/parts/__init__.py": "",
    "talk/vision/parts/adapter.py": '''\
"""Talk, where it begins."""

from __future__ import annotations

from . import words
from .sub.deep import DEPTH

talk = 1
NOTE = f"{words.Talker.__name__} of {DEPTH}"  # talk.vision


class Talk:
    """Talk is no adapter at all."""

    def like(self) -> Talk:
        import transformers

        return getattr(transformers, "TalkForCausalLM", transformers.Talk) or self.Talk
''',
    "talk/vision/parts/words.py": "class Talker:\n    pass\n",
    "talk/vision/parts/sub/__init__.py": "",
    "talk/vision/parts/sub/deep.py": "DEPTH = 1\n",
    "talk/vision/parts/unused.py": "",
    "talk/vision/demo/__init__.py": "class Other: pass\n",
    "talk/vision/tiny.py": """\
import json
from pathlib import Path


def make_tiny_checkpoint(where: Path, seed: int = 0) -> Path:
    if seed:
        return where
    (where / "config.json").write_text(json.dumps({"architectures": ["TalkForCausalLM"]}))
    return where
""",
}
"""A namespace package with nested modules, relative imports, no docstring and no contract."""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewPlugin:
    """A copy of the distribution `talk`, called `Toy`."""
    for path, text in SOURCES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    requirements = ("corellm[video] (<0.2,>=0.1)", "numpy<3,>=2; python_version > '3.9'", 'ruff; extra == "dev"')
    models = {"TalkForCausalLM": "talk.vision:Talk", "OtherForCausalLM": "talk.vision.demo:Other"}
    pretend(tmp_path, "talk", models, requirements)
    monkeypatch.syspath_prepend(str(tmp_path))
    return make_plugin(PluginName.parse("Toy"), find_original("Talk"))


def test_what_is_imported_is_copied(plugin: NewPlugin) -> None:
    """Modules that no copied one imports are left out, with the architectures of their adapters."""
    modules = {path.removeprefix("src/corellm_toy/") for path in plugin.files if path.startswith("src/")}
    assert modules == {
        "__init__.py", "contract.py", "parts/__init__.py", "parts/adapter.py", "parts/sub/__init__.py",
        "parts/sub/deep.py", "parts/words.py", "py.typed", "tiny.py",
    }  # fmt: skip
    assert plugin.architectures == {"TalkForCausalLM": "ToyForCausalLM"}
    assert plugin.original.left_out == ["OtherForCausalLM"]


def test_requirements(plugin: NewPlugin) -> None:
    """They are the original's, with corellm's extras, for the running corellm; those of its extras are left out."""
    project = tomllib.loads(plugin.files["pyproject.toml"])["project"]
    assert project["dependencies"] == ["corellm[video]>=0.2,<0.3", "numpy>=2,<3; python_version > '3.9'"]
    assert project["entry-points"]["corellm.models"] == {"ToyForCausalLM": "corellm_toy:Toy"}
    assert "license" not in project
    assert (
        "begun as a copy of talk 1.0, which is licensed under terms that its metadata do not state"
        in (plugin.files["LICENSE"])
    )


def test_names_are_renamed_and_prose_is_not(plugin: NewPlugin) -> None:
    """Names are renamed in f-strings, too; transformers' own names and variables in lower case are not."""
    assert plugin.files["src/corellm_toy/__init__.py"] == (
        '"""Toy for corellm, begun as a copy of talk 1.0."""\n\nfrom __future__ import annotations\n\n'
        'from corellm_toy.parts.adapter import Toy\n\n__all__ = ["Toy"]\n'
    )
    adapter = plugin.files["src/corellm_toy/parts/adapter.py"]
    for line in (
        '"""Talk, where it begins."""',
        "talk = 1",
        'NOTE = f"{words.Toyer.__name__} of {DEPTH}"  # corellm_toy',
        "class Toy:",
        '    """Talk is no adapter at all."""',
        "    def like(self) -> Toy:",
        '        return getattr(transformers, "TalkForCausalLM", transformers.Talk) or self.Toy',
    ):
        assert line in adapter.splitlines()


def test_a_contract_where_there_was_none(plugin: NewPlugin) -> None:
    """The contract of the adapter and the test that runs it are made."""
    contract = plugin.files["src/corellm_toy/contract.py"]
    assert "from corellm_toy import Toy\n\n\nclass TestToyForCausalLM(AdapterContract):\n" in contract
    assert contract.endswith("    adapter = Toy\n")
    assert "    TestToyForCausalLM as TestToyForCausalLM,\n" in plugin.files["tests/test_contract.py"]


def test_the_tiny_checkpoint_names_the_architecture(
    plugin: NewPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new name is set before the function's last return."""
    plugin.write(tmp_path / "toy")
    monkeypatch.syspath_prepend(str(tmp_path / "toy" / "src"))
    tiny = importlib.import_module("corellm_toy.tiny")
    config = tiny.make_tiny_checkpoint(tmp_path) / "config.json"
    assert json.loads(config.read_text()) == {"architectures": ["ToyForCausalLM"]}
    text = plugin.files["src/corellm_toy/tiny.py"]
    assert text.endswith('    set_architecture(where, "ToyForCausalLM")\n    return where\n')


@pytest.mark.parametrize(
    ("given", "distribution", "camel"),
    [
        ("toyvl", "corellm-toyvl", "Toyvl"),
        ("toy-vl", "corellm-toy-vl", "ToyVl"),
        ("ToyVL", "corellm-toyvl", "ToyVL"),
        ("corellm_toy.vl", "corellm-toy-vl", "ToyVl"),
        ("toy2-3", "corellm-toy2-3", "Toy23"),
    ],
)
def test_names(given: str, distribution: str, camel: str) -> None:
    """One name has three forms."""
    name = PluginName.parse(given)
    assert (name.distribution, name.package, name.camel) == (distribution, distribution.replace("-", "_"), camel)

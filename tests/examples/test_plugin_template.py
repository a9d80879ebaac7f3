"""The example plugin is what it says: whole, correct, and found like any other plugin."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from corellm.cli import main
from tests.examples.installing import installed

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "examples" / "plugin-template"
PACKAGE = TEMPLATE / "src" / "corellm_patchtalker"


def test_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without fault, and without being known to corellm."""
    for entry in installed(TEMPLATE, tmp_path):
        monkeypatch.syspath_prepend(str(entry))
    assert main(["plugins", "--json"]) == 0
    rows = {row["distribution"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["corellm-patchtalker"]["architectures"] == ["PatchTalkerForCausalLM"]
    for path in (ROOT / "core").rglob("*.py"):
        assert "patchtalker" not in path.read_text(encoding="utf-8").lower(), path


def test_the_readme_explains_every_file() -> None:
    """And no other."""
    told = re.findall(r"^\| `([^`]+)` \|", (TEMPLATE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    paths = {str(path.relative_to(TEMPLATE)) for path in TEMPLATE.rglob("*") if path.is_file()}
    plain = ("README.md", "LICENSE", "py.typed", ".gitignore")
    there = {path for path in paths if not re.search(r"cache|\.hypothesis", path) and not path.endswith(plain)}
    assert {name.replace("...", "src/corellm_patchtalker") for name in told} == there


def test_it_stands_alone() -> None:
    """It uses what any plugin may: the public rooms of corellm, nothing of this repository beside it."""
    public = {"corellm", *(f"corellm.{room}" for room in ("errors", "hookspecs", "multimodal"))}
    for path in [*PACKAGE.glob("*.py"), *(TEMPLATE / "tests").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        for module in re.findall(r"^\s*from (corellm(?:\.\w+)*) import", text, re.MULTILINE):
            assert module in public or module == "corellm.tiny_checkpoints", f"{path.name}: {module}"

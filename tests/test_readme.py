"""What the README shows, works."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from corellm.hookspecs import REQUIRED_HOOKS
from corellm.plugins import check_adapter_class

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)]


def test_the_python_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The ten lines, run from the checkout's root, print the number in the picture."""
    monkeypatch.chdir(ROOT)
    exec(compile(PYTHON[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "407"


def test_the_streaming_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last thing printed is the number in the picture."""
    monkeypatch.chdir(ROOT)
    exec(compile(PYTHON[1], "README.md", "exec"), {})
    assert capsys.readouterr().out.split()[-1] == "407"


def test_the_plugin_sketch() -> None:
    """The adapter shown passes the contract's checks."""
    namespace: dict[str, Any] = {}
    exec(compile(PYTHON[2], "README.md", "exec"), namespace)
    check_adapter_class(namespace["Llava"], "readme")


def test_files_it_names_exist() -> None:
    """Links and paths are not dead."""
    for target in re.findall(r"\]\(([^)#]+)\)", README) + re.findall(
        r"`((?:core|plugins|demo|tests)/[\w./-]+)`", README
    ):
        assert (ROOT / target).exists(), target


def test_every_required_hook_is_in_the_sketch() -> None:
    """Whoever copies the sketch has every hook that has no default."""
    assert all(f"def {name}(" in PYTHON[2] for name in REQUIRED_HOOKS)

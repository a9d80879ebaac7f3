"""`corellm plugins`: what is installed, and what is wrong with what is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corellm.cli import main


def test_lists_installed_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    """Distribution, version, contract, architectures."""
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert any(
        line.split() == ["corellm-llava", "0.1.0", "1", "LlavaForConditionalGeneration"] for line in out.splitlines()
    )


def test_fallbacks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """A star stands before the end of names that a fallback serves."""
    assert main(["plugins"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "*ForCausalLM" in line)
    assert line.split() == ["corellm", "0.2.0", "1", "*ForCausalLM,", "*LMHeadModel"]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same for programs."""
    assert main(["plugins", "--json"]) == 0
    rows = {row["distribution"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["corellm-llava"]["architectures"] == ["LlavaForConditionalGeneration"]
    assert rows["corellm-llava"]["error"] is None


def test_a_broken_plugin_is_shown_with_its_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are listed all the same; the exit status is 1."""
    (tmp_path / "wreck.py").write_text("def f():\n    return 1 / 0\nf()\n")
    info = tmp_path / "wreck-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wreck\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text("[corellm.models]\nWreckForCausalLM = wreck:Wreck\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["plugins"]) == 1
    out = capsys.readouterr().out
    assert "corellm-llava" in out
    assert "wreck is broken:" in out
    assert "ZeroDivisionError" in out
    assert "line 2, in f" in out

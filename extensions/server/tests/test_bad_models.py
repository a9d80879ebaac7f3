"""Models that are not what they should be: `corellm serve` does not start, or the request is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from corellm import AsyncLLM
from corellm.cli import main
from extensions.server.tests.command import CHAT, starting
from extensions.server.tests.conftest import chat, serving, user
from tests.loading.test_checkpoint import BREAKS
from tests.templates.test_renderer import DOUBLING, LOOPS, WRITING

HOSTILE = {"loops": LOOPS, "doubling": DOUBLING + "{{ ns.x }}", "writing": WRITING}


@pytest.fixture
def checkpoint(tiny_llava: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return shutil.copytree(tiny_llava, tmp_path / "model")


def test_row_20_hostile_templates(checkpoint: Path) -> None:
    """A conversation that the model's own template does not end for is refused with a 400; others are served."""
    cases = "".join(f"{{% elif m == {name!r} %}}{template}" for name, template in HOSTILE.items())
    message = "{% set c = messages[0].content %}{% set m = c if c is string else c[0].text %}"
    text = f"{message}{{% if m == 'hello' %}}USER: {{{{ m }}}}{cases}{{% endif %}}"
    (checkpoint / "chat_template.jinja").write_text(text)
    llm = AsyncLLM(str(checkpoint), dtype="float32")
    try:
        with serving(llm) as running:
            first = running.post(CHAT, chat(user("hello")))
            assert first.status_code == 200, first.text
            whole = first.json()["choices"]
            for name in HOSTILE:
                refused = running.post(CHAT, chat(user(name)))
                assert refused.status_code == 400, name
                assert len(refused.json()["error"]["message"]) <= 1000
                assert running.post(CHAT, chat(user("hello"))).json()["choices"] == whole
    finally:
        llm.close()


def assert_told(checkpoint: Path, file: str, status: int, out: str, err: str) -> None:
    """The exit status is 1, and the error is one line that names the file and the reason."""
    assert status == 1
    assert out == ""
    assert "Traceback" not in err
    assert str(checkpoint / file) in err or file in err
    assert "cannot be read" in err or "header too large" in err


def broken(checkpoint: Path, name: str) -> str:
    """Break the checkpoint; the name of the file that is."""
    file, change, _ = BREAKS[name]
    (checkpoint / file).write_bytes(change((checkpoint / file).read_bytes()))
    return file


def test_row_22_a_bad_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    """As users see it."""
    file = broken(checkpoint, "weights end early")
    done = subprocess.run(starting(checkpoint, tmp_path), capture_output=True, text=True, timeout=600, check=False)
    assert_told(checkpoint, file, done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("name", ["overlapping", "huge header", "foreign type"])
def test_row_22_bad_checkpoints(checkpoint: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The same command in this process."""
    file = broken(checkpoint, name)
    status = main(["serve", str(checkpoint), "--port", "0", "--dtype", "float32"])
    assert_told(checkpoint, file, status, *capsys.readouterr())

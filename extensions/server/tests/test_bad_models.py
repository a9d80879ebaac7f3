"""Models that are not what they should be: `corellm serve` does not start, or the request is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from corellm import AsyncLLM
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


@pytest.mark.parametrize("name", ["weights end early", "overlapping", "huge header", "foreign type"])
def test_row_22_bad_checkpoints(checkpoint: Path, tmp_path: Path, name: str) -> None:
    """Exit status 1 in 10 s; the error is one line that names the file and the reason."""
    file, change, _ = BREAKS[name]
    (checkpoint / file).write_bytes(change((checkpoint / file).read_bytes()))
    done = subprocess.run(starting(checkpoint, tmp_path), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert str(checkpoint / file) in done.stderr or file in done.stderr
    assert "cannot be read" in done.stderr or "header too large" in done.stderr

"""Opening checkpoints: whose code runs, what is refused at once and in which words, what is taken from elsewhere."""

from __future__ import annotations

import io
import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from transformers import dynamic_module_utils as transformers_code

from corellm import LLM, SamplingParams
from corellm.config import ModelConfig
from corellm.errors import CheckpointError
from corellm.worker import checkpoint as checkpoints
from corellm.worker.remote_code import no_questions

GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture
def checkpoint(tiny_llava: Path, tmp_path: Path) -> Path:
    """A copy of the tiny LLaVA, for the test to break."""
    return Path(shutil.copytree(tiny_llava, tmp_path / "checkpoint"))


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    stated = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in stated.items() if value is not None}))


# --- the checkpoint's own code ------------------------------------------------------------------------------------


@pytest.fixture
def willing_stdin(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard input on which everything is answered with yes."""
    answers = io.StringIO("y\n" * 20)
    monkeypatch.setattr(sys, "stdin", answers)
    return answers


FACTORIES = {
    "processor": ("processor_config.json", "AutoProcessor", {"processor_class": "TheirProcessor"}),
    "image processor": ("processor_config.json", "AutoImageProcessor", {}),
    "tokenizer": ("tokenizer_config.json", "AutoTokenizer", {"tokenizer_class": "TheirTokenizer"}),
    "configuration": ("config.json", "AutoConfig", {"model_type": "theirs"}),
}


def bring_code(checkpoint: Path, part: str, ran: Path) -> None:
    """Have a part of the checkpoint be Python code, which leaves a file where it ran."""
    file, auto_class, changes = FACTORIES[part]
    code = "their_code.Theirs" if part != "tokenizer" else ["their_code.Theirs", None]
    (checkpoint / "their_code.py").write_text(
        f"import transformers\nopen({str(ran)!r}, 'w').close()\nclass Theirs(transformers.LlavaProcessor):\n    pass\n"
    )
    if part == "image processor":
        settings = json.loads((checkpoint / file).read_text())["image_processor"]
        edit(
            checkpoint / file,
            image_processor={**settings, "image_processor_type": "Their", "auto_map": {auto_class: code}},
        )
    else:
        edit(checkpoint / file, auto_map={auto_class: code}, **changes)


@pytest.mark.parametrize("part", FACTORIES)
def test_a_checkpoints_code_does_not_run_unasked(
    checkpoint: Path, tmp_path: Path, willing_stdin: io.StringIO, part: str
) -> None:
    """Whatever part of a checkpoint is Python code, it is refused by name, and standard input is not read.

    A tokenizer whose class is unknown is read from `tokenizer.json` by transformers' own.
    """
    ran = tmp_path / "ran"
    bring_code(checkpoint, part, ran)
    refused = pytest.raises(CheckpointError, match="trust_remote_code=True")
    with nullcontext() if part == "tokenizer" else refused:
        LLM(str(checkpoint)).close()
    assert not ran.exists()
    assert willing_stdin.tell() == 0


def test_a_checkpoints_code_runs_where_the_operator_said_so(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trust_remote_code=True` is passed on to the processor, which is then the checkpoint's."""
    monkeypatch.setattr(transformers_code, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    ran = tmp_path / "ran"
    bring_code(checkpoint, "processor", ran)
    with LLM(str(checkpoint), trust_remote_code=True) as llm:
        assert type(llm.engine.context.hf_processor).__name__ == "Theirs"
    assert ran.exists()


def test_an_adapters_own_call_asks_nothing(checkpoint: Path, tmp_path: Path, willing_stdin: io.StringIO) -> None:
    """A factory that leaves the flag out fails instead of asking; afterwards transformers is as it was."""
    import transformers

    bring_code(checkpoint, "processor", tmp_path / "ran")
    before = transformers_code.TIME_OUT_REMOTE_CODE
    with pytest.raises(CheckpointError, match="trust_remote_code=True"):
        checkpoints.load_tokenizer(
            checkpoint, lambda path: transformers.AutoProcessor.from_pretrained(path), trust_remote_code=False
        )
    with no_questions(), no_questions():
        pass
    assert not (tmp_path / "ran").exists()
    assert willing_stdin.tell() == 0
    assert before == transformers_code.TIME_OUT_REMOTE_CODE > 0


@pytest.mark.parametrize("trusted", [False, True])
def test_hub_checkpoints_come_with_their_code_only_where_it_may_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trusted: bool
) -> None:
    """Python files are downloaded with `trust_remote_code`, and only with it."""
    import huggingface_hub

    asked: dict[str, Any] = {}

    def download(name: str, **arguments: Any) -> str:
        asked.update(arguments, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    config = ModelConfig(model="some/model", revision="v1", trust_remote_code=trusted)
    assert checkpoints.resolve_checkpoint(config) == tmp_path
    assert (asked["name"], asked["revision"]) == ("some/model", "v1")
    assert ("*.py" in asked["allow_patterns"]) is trusted

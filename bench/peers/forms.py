"""What sides read that is made of a checkpoint, once: OpenVINO's exports, and GGUF files with weights of some types."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peers.environments import Environment, process_variables, python_of
from bench.peers.processes import run

HUB = "model"
"""The checkpoint itself."""
_SECONDS = 1800


@dataclass(frozen=True)
class Maker:
    """Makes forms in a checkpoint's folder."""

    folder: Path
    dtype: str
    threads: int
    cache: Path
    """Where environments are."""
    log: Path
    doing: Callable[[str], None]
    """Is told what is made."""

    def make(self, form: str) -> str | None:
        """Make a form if it is not there; return why it could not be."""
        if (self.folder / form).exists():
            return None
        name = Environment.of("openvino" if form.startswith("openvino") else "llama.cpp", self.cache)
        if name.missing:
            return name.missing
        self.doing(f"{form} of {self.folder.name}")
        return self._export(form, name) if form.startswith("openvino") else self._gguf(form, name)

    def _export(self, form: str, environment: Environment) -> str | None:
        native = {"float32": "fp32", "bfloat16": "fp16"}[self.dtype]  # optimum-intel has no bfloat16
        weights = form.partition("-")[2] or native
        optimum = str(environment.python.with_name("optimum-cli"))
        options = ["--task", "image-text-to-text", "--weight-format", weights]
        return self._run(
            [optimum, "export", "openvino", "--model", str(self.folder / HUB), *options], form, environment
        )

    def _gguf(self, form: str, environment: Environment) -> str | None:
        """Write the files in float16, then round the text model's as llama.cpp's own tool does."""
        first = self.folder / "gguf" / "F16.gguf"
        if not first.exists():
            command = [python_of(None), "-m", "bench.peers.gguf_files", str(self.folder / HUB)]
            if problem := self._run(command, first.parent.name, None):
                return problem
        if form == "gguf/F16.gguf":
            return None
        command = [python_of(environment), "-m", "bench.peers.engines.llamacpp", Path(form).stem, str(first)]
        return self._run(command, form, environment)

    def _run(self, command: list[str], form: str, environment: Environment | None) -> str | None:
        """Run a command whose last argument is what it writes."""
        target = self.folder / form
        unfinished = target.with_name(f"unfinished-{target.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        problem = run([*command, str(unfinished)], process_variables(self.threads, environment), self.log, _SECONDS)
        if problem is None:
            unfinished.rename(target)
        return problem and f"{form} could not be made: {problem}"

"""The environments of client libraries: what is in each, and how they are made. None is a dependency of corellm.

An environment that is there with the same requirements is left as it is; the newest versions come with `make clean` or
an empty folder. None may have CUDA's libraries, gigabytes that clients of a server do not use.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CACHE = Path(sys.prefix, "clients")
"""Ignored by git."""
SCRIPTS = Path(__file__).parent
_QUIET = ("--quiet", "--disable-pip-version-check")
_CPU_INDEX, _CPU_TORCH = "https://download.pytorch.org/whl/cpu", "torch==2.13.0+cpu"


@dataclass(frozen=True)
class Client:
    """A library, or one of its interfaces."""

    script: str
    """In `conversations` or `tasks`."""
    environment: str
    requirements: tuple[str, ...]
    """What pip or npm installs into the environment."""
    kind: Literal["conversations", "tasks"] = "conversations"
    """What its script does: hold the conversation, or have outputs of a form and calls of tools."""
    is_of_demo: bool = True
    """Whether it talks with the demo model; else with one of random weights whose template is told of tools."""
    needs_torch: bool = False
    """Whether its dependencies have torch, which is then installed before them in the build for CPUs."""
    text_first: bool = False
    """Whether it puts a message's text before its image."""
    lacks: str = ""
    """What is not tried, and why."""

    @property
    def is_python(self) -> bool:
        """Whether it is Python's."""
        return self.script.endswith(".py")

    def folder(self, cache: Path) -> Path:
        """Its environment."""
        return cache / self.environment

    def command(self, cache: Path, arguments: list[str]) -> list[str]:
        """What talks with a server, to be run in its environment's folder."""
        script = str(SCRIPTS / self.kind / self.script)
        return [str(self.folder(cache) / "bin" / "python") if self.is_python else "node", script, *arguments]

    def install(self, cache: Path) -> None:
        """Make its environment, unless it is there.

        Raises:
            CalledProcessError: pip or npm failed.
            RuntimeError: CUDA came with it.
        """
        folder, wanted = self.folder(cache), "\n".join(self.requirements)
        ready = folder / "installed.txt"
        if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if self.is_python:
            self._install_python(folder)
        else:
            subprocess.run(["npm", "install", "--silent", *self.requirements], cwd=folder, check=True)
        ready.write_text(wanted, encoding="utf-8")

    def _install_python(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", *_QUIET]
        if self.needs_torch:
            subprocess.run([*pip, "--no-deps", "--extra-index-url", _CPU_INDEX, _CPU_TORCH], check=True)
        subprocess.run([*pip, *self.requirements], check=True)
        if list(folder.glob("lib/python*/site-packages/nvidia")):
            raise RuntimeError(f"{self.environment} has CUDA's libraries; give it needs_torch")


_TASKS: dict[str, Any] = {"kind": "tasks", "is_of_demo": False}
CLIENTS = {
    "openai, chat": Client("openai_chat.py", "openai", ("openai",)),
    "openai, responses": Client("openai_responses.py", "openai", ("openai",)),
    "anthropic": Client("anthropic_messages.py", "anthropic", ("anthropic",)),
    "openai of JavaScript": Client("openai_js.mjs", "javascript", ("openai",)),
    "LangChain": Client("langchain.py", "langchain", ("langchain-openai", "langchain")),
    "litellm": Client("litellm_sdk.py", "litellm", ("litellm",)),
    "llm": Client("llm_cli.py", "llm", ("llm",)),
    "LlamaIndex": Client("llama_index_like.py", "llama-index", ("llama-index-llms-openai-like",)),
    "Pydantic AI": Client("pydantic_agent.py", "pydantic-ai", ("pydantic-ai-slim[openai]",)),
    "instructor": Client("instructor_plain.py", "instructor", ("instructor",)),
    "guidellm": Client("guidellm_benchmark.py", "guidellm", ("guidellm[vision]",), needs_torch=True, text_first=True),
    "lm-eval": Client("lm_eval_chat.py", "lm-eval", ("lm-eval[api]", "pillow"), lacks="it never streams"),
    "openai, an agent": Client("demo_agent.py", "openai", ("openai",), kind="tasks"),
    "openai, forms": Client("openai_forms.py", "openai", ("openai",), **_TASKS),
    "anthropic, tools": Client("anthropic_tools.py", "anthropic", ("anthropic",), **_TASKS),
    "LangChain, tools": Client("langchain_tools.py", "langchain", ("langchain-openai", "langchain"), **_TASKS),
    "litellm, tools": Client("litellm_tools.py", "litellm", ("litellm",), **_TASKS),
    "LlamaIndex, tools": Client("llama_index_tools.py", "llama-index", ("llama-index-llms-openai-like",), **_TASKS),
    "Pydantic AI, types": Client("pydantic_ai_types.py", "pydantic-ai", ("pydantic-ai-slim[openai]",), **_TASKS),
    "instructor, models": Client("instructor_models.py", "instructor", ("instructor",), **_TASKS),
}
"""By the name that the table has."""

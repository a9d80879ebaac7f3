"""Scripts in the manner of vLLM's examples: each runs, or ends with one typed line, as its table says."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from pathlib import Path

import pytest

from corellm.errors import AbsentNameError
from extensions.vllm.tests.kinds import CHECKPOINTS, KINDS, SCRIPTS, prepare

ALLOWED = {*sys.stdlib_module_names, "corellm_vllm", "torch"}
FAST = ["basic", "llm_engine", "async_llm_streaming", "vision_language", "classify", "metrics", "multilora"]
"""Scripts that run in a second or two each; `make vllm-scripts` runs all."""


def imports(name: str) -> list[tuple[str, list[str]]]:
    """The modules that a script imports, with the names from each."""
    tree = ast.parse((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    plain = [(alias.name, []) for node in found if isinstance(node, ast.Import) for alias in node.names]
    return [*plain, *((str(n.module), [a.name for a in n.names]) for n in found if isinstance(n, ast.ImportFrom))]


def test_the_table_has_every_script() -> None:
    """And no other; most of them run."""
    assert {path.stem for path in SCRIPTS.glob("*.py")} == KINDS.keys()
    assert len(KINDS) >= 43
    assert sum(kind.error is None for kind in KINDS.values()) >= 30
    assert all(kind.says for kind in KINDS.values() if kind.error is not None)
    sources = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.py"))
    assert all(f'"{name}"' in sources for name in CHECKPOINTS)


@pytest.mark.parametrize("name", KINDS)
def test_a_script_imports_nothing_of_ours_but_the_names(name: str) -> None:
    """As it would after `vllm` became `corellm_vllm` in it; every import is there, unless that is what is refused."""
    modules = imports(name)
    assert {module.partition(".")[0] for module, _ in modules} <= ALLOWED
    assert any(module.startswith("corellm_vllm") for module, _ in modules)
    refused = 0
    for module, names in modules:
        try:
            loaded = importlib.import_module(module)
            for wanted in names:
                getattr(loaded, wanted)
        except AbsentNameError:
            refused += 1
    assert bool(refused) is (KINDS[name].error is AbsentNameError)


@pytest.mark.parametrize("name", FAST)
def test_a_script_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To its end, in a folder with nothing but the checkpoints that it names."""
    prepare(SCRIPTS / f"{name}.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", ["spec_decode_of_a_model", "torchrun", "disaggregated_prefill"])
def test_a_script_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one typed line that says what to use instead, before a model is loaded."""
    monkeypatch.chdir(tmp_path)
    kind = KINDS[name]
    assert kind.error is not None
    with pytest.raises(kind.error) as refused:
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    assert kind.says in str(refused.value)
    assert "\n" not in str(refused.value)

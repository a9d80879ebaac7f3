"""Wheels of plugins as they were kept when a version was released, used with the core of this checkout.

Each set has an environment of its own, with the wheels' contents, their dependencies and this core; the checkout's
plugins are not in it. A set is deleted once its contract version is no longer supported. Later cores are made of this
one by renaming a hook.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.version import Version

from corellm.errors import CorellmError, EncoderError, ProcessingError
from corellm.hookspecs import CONTRACT_VERSION
from tests.wheels.environments import ROOT, Environment, find_wheels, unpacked

HERE = Path(__file__).parent
SETS = sorted((HERE / "wheels").iterdir(), key=lambda folder: [int(part) for part in folder.name.split(".")])
LLAVA = "LlavaForConditionalGeneration"
OUTGROWN: dict[str, tuple[Version, type[CorellmError]]] = {
    "FuyuForCausalLM": (Version("5.22.2"), ProcessingError),
    "Qwen3VLForConditionalGeneration": (Version("5.18"), EncoderError),
}
"""Releases of transformers from which on a family of the first set needs its later wheel, whatever the core, and
the error that says so at load."""


@dataclass
class Kept:
    """A set of wheels in its environment."""

    environment: Environment

    def use(self, *options: str | Path) -> tuple[dict[str, Any], str]:
        """Return what `use_plugins` prints of each architecture, and standard error."""
        results, _, warned = self.environment.python(HERE / "use_plugins.py", *options).partition("\n")
        return json.loads(results), warned

    @cached_property
    def results(self) -> dict[str, Any]:
        """The results of all architectures."""
        return self.use()[0]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Kept]:
    """`kept(folder)`: the set in a folder, unpacked once."""

    @cache
    def make(folder: Path) -> Kept:
        wheels = find_wheels(folder)
        where = tmp_path_factory.mktemp("kept") / "environment"
        # the core that they were made for read audio and videos itself
        return Kept(unpacked(where, [*wheels, "corellm-media", "corellm-testing"], wheels))

    return make


@pytest.fixture
def newest(kept: Callable[[Path], Kept]) -> Kept:
    """The set that was kept last."""
    return kept(SETS[-1])


def edit(file: Path, *changes: tuple[str, str]) -> None:
    """Replace patterns in a file; each must be there."""
    text = file.read_text(encoding="utf-8")
    for pattern, new in changes:
        text, count = re.subn(pattern, new, text, flags=re.MULTILINE)
        assert count, f"{file.name} has no {pattern}"
    file.write_text(text, encoding="utf-8")


def later_core(where: Path, *, oldest: int) -> Path:
    """A folder with a core of the next contract version: `get_dummy_text` is renamed, and takes one argument more."""
    shutil.copytree(ROOT / "core" / "corellm", where / "corellm", ignore=shutil.ignore_patterns("__pycache__"))
    for file in where.rglob("*.py"):
        file.write_text(re.sub(r"\bget_dummy_text\b", "get_sample_text", file.read_text(encoding="utf-8")))
    edit(
        where / "corellm" / "hookspecs.py",
        (r"^(CONTRACT_VERSION =) .*", rf"\1 {CONTRACT_VERSION + 1}"),
        (r"^(OLDEST_CONTRACT_VERSION =) .*", rf"\1 {oldest}"),
        (r"^(RENAMED_HOOKS.* =) .*", r'\1 {"get_dummy_text": "get_sample_text"}'),
        (r"^(def get_sample_text\()", r"\1language: str, "),
    )
    call = r"(hooks\.get_sample_text, )(?=mm_counts)"
    edit(where / "corellm" / "multimodal" / "processor.py", (call, r'\1language="en", '))
    return where


def test_the_index_is_of_these_wheels() -> None:
    """No wheel was replaced, lost or added."""
    for folder in SETS:
        hashes = {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in folder.glob("*.whl")}
        assert json.loads((folder / "index.json").read_text(encoding="utf-8"))["sha256"] == hashes, folder


@pytest.mark.parametrize("folder", SETS, ids=lambda folder: folder.name)
def test_kept_wheels_run(kept: Callable[[Path], Kept], folder: Path) -> None:
    """Every architecture of every wheel loads a tiny checkpoint and gives tokens for an item of each modality.

    Where transformers itself has outgrown a wheel, a typed error that names the plugin's file, never other tokens.
    """
    results, environment = kept(folder).results, kept(folder).environment
    installed = Version(transformers.__version__)
    for architecture, result in results.items():
        outgrown_at, kind = OUTGROWN.get(architecture, (None, CorellmError))
        if outgrown_at is None or installed < outgrown_at:
            assert "tokens" in result, (architecture, result)
        else:
            name, _, message = result["error"].partition(": ")
            assert name == kind.__name__, result
            assert f"({result['distribution'].replace('-', '_')}/" in message
        assert Path(result["file"]).is_relative_to(environment.root), result
    assert {result["distribution"] for result in results.values()} == set(find_wheels(folder))


def test_a_kept_wheel_keeps_the_contract(newest: Kept) -> None:
    """By the contract tests of today, run as its author would: loading, processing, placing, embedding, generating."""
    rules = "it_loads or equal_the_hf_processor or placeholders or chunks_give or greedy_equals"
    passed = newest.environment.python("-m", "pytest", "--pyargs", "corellm_llava.contract", "-x", "-q", "-k", rules)
    assert re.search(r"\b[1-9]\d* passed\b", passed), passed


def test_a_later_core_takes_it_with_a_warning(newest: Kept, tmp_path: Path) -> None:
    """While its contract version is supported: the tokens are the same, and one warning says what to do."""
    core = later_core(tmp_path / "core", oldest=CONTRACT_VERSION)
    results, warned = newest.use("--only", "corellm-llava", "--first", core)
    assert results == {LLAVA: newest.results[LLAVA]}
    said = "Llava.get_dummy_text: get_sample_text "
    assert warned.count(f"FutureWarning: corellm-llava: {said}") == 1, warned


def test_the_core_after_that_refuses_it(newest: Kept, tmp_path: Path) -> None:
    """In one line, which says what to upgrade."""
    core = later_core(tmp_path / "core", oldest=CONTRACT_VERSION + 1)
    results, _ = newest.use("--only", "corellm-llava", "--first", core)
    assert re.fullmatch(
        rf"ContractError: corellm-llava .*{CONTRACT_VERSION}, .* {CONTRACT_VERSION + 1}; upgrade corellm-llava",
        results[LLAVA]["error"],
    )


def test_a_wheel_from_the_future_is_refused(newest: Kept, tmp_path: Path) -> None:
    """Its adapter declares contract 99."""
    for entry in newest.environment.site_packages.glob("corellm_llava*"):
        shutil.copytree(entry, tmp_path / entry.name)
    edit(tmp_path / "corellm_llava" / "__init__.py", (r"contract = \d+", "contract = 99"))
    results, _ = newest.use("--only", "corellm-llava", "--first", tmp_path)
    refused = r"ContractError: corellm-llava speaks contract 99, this corellm speaks .*; upgrade corellm"
    assert re.fullmatch(refused, results[LLAVA]["error"])

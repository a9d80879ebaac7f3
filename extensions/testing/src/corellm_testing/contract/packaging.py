"""Rules about the distribution: how the adapter is found, imported and loaded, and what its tiny checkpoint is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from corellm.errors import ContractError
from corellm.hookspecs import CONTRACT_VERSION
from corellm.loading.checkpoint import read_architectures
from corellm.plugin.adapters import find_adapter
from corellm.plugin.contract import CONTRACT, contract_versions
from corellm.plugin.hook_callers import adapter_implements
from corellm_testing.contract.base import ContractRules, files_of
from corellm_testing.counting import are_contradictory, miscounting_hook_at_load
from corellm_testing.quick import slow
from corellm_testing.rules import child_environment
from corellm_testing.subject import Subject
from corellm_testing.weights import weights_of_other_dtypes

HEAVY = ("torch", "transformers", "numpy", "PIL", "av", "soundfile")


class PackagingRules(ContractRules):
    """Found, imported, loaded."""

    def test_an_entry_point_names_the_adapter(self) -> None:
        """The engine finds the adapter: an entry point of the group `corellm.models` names its class."""
        found = self.architectures()
        self.require(
            len(found) == 1,
            "the entry point",
            expected="one architecture to test",
            got=found or "none",
            fix='name the class in [project.entry-points."corellm.models"] and install the distribution '
            "(pip install -e .); where it serves several, a contract class for each says architecture = '...'",
        )

    def test_import_is_light(self) -> None:
        """Importing the adapter's module imports neither torch nor transformers, nor anything that decodes media.

        Plugins are listed, and errors about missing ones are given, without waiting for them.
        """
        code = f"import sys, {self.adapter.__module__}; print(*(n for n in {HEAVY} if n in sys.modules))"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=child_environment(), check=False
        )
        self.require(
            done.returncode == 0 and not done.stdout.split(),
            "the module",
            expected="none of them imported",
            got=done.stdout.strip() or done.stderr.strip() or "none",
            fix="move the import into the hooks that need it; for annotations use `if TYPE_CHECKING:`",
        )

    def test_the_contract_version_is_checked(self) -> None:
        """The adapter declares a contract version that this corellm speaks; another one is refused in a line."""
        with self.expecting("a contract version", hook="contract", fix=f"write contract = {CONTRACT_VERSION}"):
            versions = contract_versions(self.adapter)
        self.require(
            versions[-1] == CONTRACT_VERSION,
            "contract",
            expected=f"contract = {CONTRACT_VERSION}, or a range that ends with it",
            got=self.adapter.contract,
            fix="declare the version that the adapter was written for and tested with",
        )
        with self.expecting("an adapter class without faults", fix="do what the error says"):
            CONTRACT.check_adapter(self.adapter, "this plugin")
        later = type("Later", (self.adapter,), {"contract": 99})
        with self.refusing("contract", "version 99", ContractError, words="upgrade corellm", fix="declare a number"):
            CONTRACT.check_adapter(later, "this plugin")

    @slow()
    def test_the_tiny_checkpoint_is_deterministic(self, written: Mapping[str, bytes], tmp_path: Path) -> None:
        """The same seed writes the same files; another seed writes other weights of the same model."""
        again, other = (files_of(self.make_checkpoint(tmp_path / str(seed), seed)) for seed in (0, 1))
        self.require(
            written == again,
            "make_tiny_checkpoint",
            expected="the same bytes for the same seed",
            got=sorted(name for name in written if written[name] != again.get(name)),
            fix="draw every random number from a generator made of the seed",
        )
        different = sorted(name for name in written if written[name] != other.get(name))
        self.require(
            bool(different) and all(name.endswith(".safetensors") for name in different),
            "make_tiny_checkpoint",
            expected="another seed changes the weights and nothing else",
            got=different or "nothing changes",
            fix="seed the weights, and nothing but them",
        )

    def test_it_loads(self, checkpoint: Path, loaded: Subject | Exception) -> None:
        """The tiny checkpoint loads, and the dummy items go through the encoder."""
        fix = "do what the error says; the other rules need this one"
        with self.expecting("an adapter for the tiny checkpoint", hook="the entry point", fix=fix):
            entry = find_adapter(read_architectures(checkpoint))
            served = entry.load()
        self.require(
            served is self.adapter,
            "the entry point",
            expected=f"{self.adapter.__qualname__} serves the checkpoint",
            got=f"{entry.entry_point.value} of {entry.distribution}",
            fix="make the checkpoint's architectures and the entry point agree",
        )
        with self.expecting("the tiny checkpoint loads", fix=fix):
            if isinstance(loaded, Exception):
                if are_contradictory(loaded):
                    self._tell_miscount(checkpoint, loaded)
                self._require_no_others(weights_of_other_dtypes(checkpoint, "float32"), "float32")
                raise loaded

    def _tell_miscount(self, checkpoint: Path, error: Exception) -> None:
        """Say which hook is at fault where the dummies' embeddings do not fit their placeholders."""
        __tracebackhide__ = True
        modality = str(error).partition(" ")[0]
        reference = self.reference(checkpoint)
        try:
            hook, fix = miscounting_hook_at_load(checkpoint, reference, modality)
        finally:
            reference.close()
        self.fail(hook, expected="as many embeddings as the placeholder takes", got=error, fix=fix)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_weights_are_of_the_asked_dtype(self, subject: Subject, written: Mapping[str, bytes], dtype: str) -> None:
        """Each weight of the loaded model is of `load_config.dtype`.

        A vector may be of float32 all the same, such as a correction that is added to scores, and what transformers
        keeps in float32 of a model of its own. Loading leaves the process's default dtype and the checkpoint's files
        unchanged.
        """
        import torch

        default = torch.get_default_dtype()
        with self.expecting(f"weights are loaded in {dtype}", hook="load_model"):
            others = weights_of_other_dtypes(subject.checkpoint, dtype)
        self._require_no_others(others, dtype)
        self.require(
            torch.get_default_dtype() == default and files_of(subject.checkpoint) == written,
            "load_model",
            expected="the process's default dtype and the checkpoint's files as they were",
            got="others",
            fix="pass the dtype on to what needs it, and write nothing",
        )

    def _require_no_others(self, others: Sequence[str], dtype: str) -> None:
        __tracebackhide__ = True
        self.require(
            not others,
            "load_model",
            expected=f"weights of the dtype that is asked for, load_config.dtype={dtype}",
            got=f"{len(others)} of another dtype, such as {', '.join(others[:3])}",
            fix="load in load_config.dtype, which is the user's choice, whatever the checkpoint's files say; a matrix "
            "that must stay in float32 is a reason to name test_weights_are_of_the_asked_dtype in exceptions",
        )

    def test_the_model_is_loaded_for_inference(self, subject: Subject) -> None:
        """Every part of the model is in evaluation mode: dropout would make outputs random."""
        training = [name or "the model" for name, module in subject.model.named_modules() if module.training]
        self.require(
            not training,
            "load_model or get_language_model"
            if adapter_implements(subject.hooks.get_language_model)
            else "load_model",
            expected="all modules in evaluation mode",
            got=f"{len(training)} in training mode: {', '.join(training[:3])}",
            fix="return model.eval() from load_model, and call train() in no hook",
        )

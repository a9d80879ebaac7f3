"""scikit-learn and scipy are imported by who uses them, and not by who loads a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="comes with librosa")

LOADED = """
import sys
from corellm import LLM
with LLM(sys.argv[1], device="cpu") as llm:
    llm.generate("a")
    assert not {"sklearn", "scipy"} & {name.split(".")[0] for name in sys.modules}
"""
CALLED = """
import sys
from corellm.loading.deferred_imports import import_deferring
import_deferring()
assert not {"sklearn", "scipy"} & {name.split(".")[0] for name in sys.modules}
from transformers.generation import candidate_generator
from transformers.loss import loss_for_object_detection
assert list(loss_for_object_detection.linear_sum_assignment([[2, 1], [1, 2]])[1]) == [1, 0]
roc_curve = getattr(candidate_generator, "roc_curve", None)  # newer releases import it where they call it
assert roc_curve is None or roc_curve([0, 1], [0.2, 0.8])[1][-1] == 1
import scipy.optimize, sklearn.metrics
assert sklearn.metrics.f1_score([1], [1]) == 1
"""
MEANWHILE = """
import sys
class Finder:  # imports the whole module while transformers does
    def find_spec(self, name, path=None, target=None):
        if name == "transformers.loss.loss_for_object_detection":
            from scipy.optimize import brentq
            import scipy.optimize as optimize
            assert optimize.brentq is brentq
sys.meta_path.insert(0, Finder())
from corellm.loading.deferred_imports import import_deferring
import_deferring()
import scipy.optimize
from transformers.loss import loss_for_object_detection
assert scipy.optimize.linear_sum_assignment is loss_for_object_detection.linear_sum_assignment
"""


@pytest.mark.parametrize("script", [LOADED, CALLED, MEANWHILE], ids=["loaded", "called", "meanwhile"])
def test_in_a_process(script: str, tiny_llava: Path) -> None:
    """After loading a model; when the functions are called that need them; when another thread imports them."""
    subprocess.run([sys.executable, "-c", script, str(tiny_llava)], check=True, timeout=600)

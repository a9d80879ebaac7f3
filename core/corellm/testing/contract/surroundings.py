"""The rule about surroundings: an adapter leaves the state that all code of a process shares unchanged."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from corellm.testing.contract.base import ContractRules
from corellm.testing.subject import Subject


class SurroundingsRules(ContractRules):
    """The process."""

    def test_the_process_is_left_alone(self, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
        """Processing and embedding leave the process's random numbers, defaults and environment as they were."""
        from PIL import Image, ImageFile

        # an adapter that set these at load would set the same values again: start from others
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 123_456_789)
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
        for modality in subject.modalities:
            _draw()
            before = _surroundings()
            with self.expecting("an item is processed"):
                features = subject.features(modality, subject.item(modality, 6))
            self._same("call_hf_processor", before)
            with self.expecting("an item is embedded"):
                subject.embed(features)
            self._same("get_multimodal_embeddings", before)

    def _same(self, hook: str, before: dict[str, Any]) -> None:
        __tracebackhide__ = True
        changed = sorted(name for name, value in _surroundings().items() if before[name] != value)
        self.require(
            not changed,
            hook,
            expected="the process as it was",
            got=f"changed: {', '.join(changed)}",
            fix="draw from a generator of your own; give dtypes, devices and bounds to the calls that need them",
        )


def _draw() -> None:
    """Advance all generators to a state that no seed gives."""
    import numpy as np
    import torch

    torch.rand(1)
    np.random.rand()
    random.random()


def _surroundings() -> dict[str, Any]:
    """Return the state that all code of a process shares, by name."""
    import numpy as np
    import torch
    from PIL import Image, ImageFile

    return {
        "torch's random numbers": torch.get_rng_state().tolist(),
        "numpy's random numbers": repr(np.random.get_state()),
        "Python's random numbers": random.getstate(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's gradients": torch.is_grad_enabled(),
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "Pillow's bounds": (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES),
        "the environment": dict(os.environ),
        "the working directory": os.getcwd(),
    }

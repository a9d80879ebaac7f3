"""Rules about surroundings: an adapter leaves the state that all code of a process shares unchanged."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from corellm.llm import LLM
from corellm_testing.contract.base import ContractRules
from corellm_testing.hook_calls import Request, hook_calls
from corellm_testing.quick import slow
from corellm_testing.subject import Subject
from corellm_testing.surroundings import changed, environment, generators, log_levels, log_levels_at, settings

_AT_LOAD = ("register_config", "register_tokenizer", "register_processor", "get_language_model", "get_dummy_mm_data")
"""Hooks that run at load, too."""
_NOBODYS_LEVEL = 49
_NOBODYS_WARNING = "a warning that nobody gives"


class SurroundingsRules(ContractRules):
    """The process."""

    def test_the_process_is_left_alone(self, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
        """No hook of a request or a dummy changes the process's random numbers, defaults, bounds or environment."""
        _unusual(monkeypatch)
        for modality in subject.modalities:
            _draw()
            before = _around_hooks()
            for hook, call in self._calls(subject, modality):
                with self.expecting(f"{hook} is called", hook=hook):
                    call()
                self._unchanged(hook, changed(before, _around_hooks()))

    @slow()
    def test_loading_leaves_the_process_alone(
        self, subject: Subject, changed_by_loading: Sequence[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Loading a model changes no default, precision or bound of the process, and not which warnings are seen.

        Libraries change the environment, warning filters and levels of logs when they are imported: those are compared
        for a second model.
        """
        hooks = " or ".join(["load_model", *(hook for hook in _AT_LOAD if hasattr(self.adapter, hook))])
        self._unchanged(hooks, changed_by_loading)
        _unusual(monkeypatch)
        with warnings.catch_warnings(), log_levels_at(_NOBODYS_LEVEL):
            warnings.filterwarnings("ignore", _NOBODYS_WARNING)  # first in the list: another one moves it
            before = _around_loading()
            with self.expecting("a second model of the checkpoint loads", hook="load_model"):
                LLM(str(subject.checkpoint), dtype="float32").close()
            self._unchanged(hooks, changed(before, _around_loading()))

    def _calls(self, subject: Subject, modality: str) -> Iterable[Any]:
        """Yield hooks by name and the calls of them, for a dummy and for a request."""
        given: Any = {"seq_len": subject.context.max_model_len, "mm_counts": {modality: 1}, "mm_options": {}}
        yield "get_dummy_mm_data", lambda: subject.hooks.get_dummy_mm_data(**given)
        yield from hook_calls(subject, Request.of(subject, modality, subject.item(modality, 6)))

    def _unchanged(self, hook: str, names: Sequence[str]) -> None:
        __tracebackhide__ = True
        self.require(
            not names,
            hook,
            expected="the process as it was",
            got=f"changed: {', '.join(names)}",
            fix="draw from a generator of your own; give dtypes, devices and bounds to the calls that need them, and "
            "silence a warning where it is given (warnings.catch_warnings)",
        )


def _unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give settings other values: an adapter that set them at load would set the same ones again."""
    from PIL import Image, ImageFile

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 123_456_789)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)


def _draw() -> None:
    """Advance all generators to a state that no seed gives."""
    import numpy as np
    import torch

    torch.rand(1)
    np.random.rand()
    random.random()


def _around_hooks() -> dict[str, Any]:
    return {**settings(), **environment(), **generators()}


def _around_loading() -> dict[str, Any]:
    return {**settings(), **environment(), **log_levels(), "the warning filters": list(warnings.filters)}

"""Engines of each model on each set of kernels that the processor runs; two models on the best are the short form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.same_results.engines import Engines, kernel_sets, kernels
from tests.same_results.models import MODELS

SETS = kernel_sets()
IN_SHORT = ("llava", "gemma3")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((chosen, name), marks=() if name in IN_SHORT and chosen == SETS[0] else pytest.mark.full)
        for chosen in SETS
        for name in MODELS
    ],
    ids="-".join,
)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """The engines of a model on a set of kernels."""
    chosen, name = request.param
    with kernels(chosen):
        made = Engines(MODELS[name], tmp_path_factory.mktemp("models"))
        yield made
        made.close()

"""Item embeddings are written where torch's masked write puts them, by kernel and twin alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corellm.errors import EmbeddingCountError
from corellm.modelling.defaults import ModelDefaults
from corellm.multimodal import write_rows
from corellm_kernels.gpu.merging import merge_rows, merge_rows_reference
from tests.kernels.comparing import DEVICE, DTYPES

WAYS = [merge_rows, merge_rows_reference]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Text embeddings, item embeddings of any type, and which tokens take one."""
    width = draw(st.sampled_from([1, 5, 80, 2100]))
    takes = draw(st.lists(st.booleans(), min_size=1, max_size=7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    # both as parts of wider tensors
    embeds, rows = (torch.randn(n, width + 3, generator=generator)[:, :width] for n in (len(takes), sum(takes)))
    dtypes = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    return embeds.to(dtypes[0]).to(DEVICE), rows.to(dtypes[1]).to(DEVICE), torch.tensor(takes, device=DEVICE)


@pytest.mark.parametrize("merge", WAYS)
@settings(max_examples=40)
@given(batch=batches())
def test_merging(merge: Callable[..., None], batch: tuple[Tensor, Tensor, Tensor]) -> None:
    embeds, rows, takes = batch
    wanted = embeds.masked_scatter(takes[:, None], rows.to(embeds.dtype))
    assert torch.equal(ModelDefaults(None, merge).merge_multimodal_embeddings(embeds, rows, takes), wanted)  # type: ignore[arg-type]
    assert torch.equal(embeds, wanted)


@pytest.mark.parametrize("merge", [*WAYS, None])
@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (2, 7), (2, 1), (0, 8), (8,)])
def test_rows_that_do_not_fit_are_refused(merge: Callable[..., None] | None, shape: tuple[int, ...]) -> None:
    """Before anything is written, in the same words as by plain torch."""
    embeds, takes = torch.zeros(4, 8, device=DEVICE), torch.tensor([True, False, True, False], device=DEVICE)
    with pytest.raises(EmbeddingCountError) as refused:
        ModelDefaults(None, merge).merge_multimodal_embeddings(embeds, torch.ones(shape, device=DEVICE), takes)  # type: ignore[arg-type]
    with pytest.raises(EmbeddingCountError) as theirs:
        write_rows(embeds, torch.ones(shape, device=DEVICE), takes)
    assert str(refused.value) == str(theirs.value)
    assert not embeds.any()

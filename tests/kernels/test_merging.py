"""Lookup and merge in one pass give what their torch twin gives, and the twin what a lookup and a masked write give."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from corellm_kernels.merging import embed_and_merge, embed_and_merge_reference
from tests.kernels.comparing import DEVICE, DTYPES

VOCAB = 6
OUTSIDE = (-1, VOCAB, 10**13)
"""Placeholders' ids that the table lacks; to read there is to crash."""


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids, table, rows, and which row each token takes."""
    dtype = draw(st.sampled_from(DTYPES))
    width = draw(st.sampled_from([1, 5, 80, 2100]))
    num_rows = draw(st.integers(0, 3))
    index = draw(st.lists(st.integers(-2, num_rows - 1) if num_rows else st.integers(-2, -1), max_size=5))
    ids = [draw(st.sampled_from(OUTSIDE) if row >= 0 else st.integers(0, VOCAB - 1)) for row in index]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    # table and rows as parts of wider tensors
    table, rows = (torch.randn(n, width + 3, generator=generator)[:, :width] for n in (VOCAB, num_rows))
    kind = draw(st.sampled_from([torch.int32, torch.int64]))
    made = torch.tensor(ids, dtype=torch.int64), table.to(dtype), rows.to(dtype), torch.tensor(index, dtype=kind)
    return tuple(x.to(DEVICE) for x in made)  # type: ignore[return-value]


@settings(max_examples=40)
@given(batches())
def test_merging(batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    ours, theirs = embed_and_merge(*batch), embed_and_merge_reference(*batch)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


def test_rows_take_the_tables_type() -> None:
    table, rows = torch.randn(VOCAB, 8).half().to(DEVICE), torch.randn(2, 8).to(DEVICE)
    ids, index = torch.tensor([3, 99, 0], device=DEVICE), torch.tensor([-1, 1, -1], device=DEVICE)
    assert torch.equal(embed_and_merge(ids, table, rows, index), embed_and_merge_reference(ids, table, rows, index))


@given(st.lists(st.booleans(), max_size=9), st.integers(0, 99))
def test_the_twin_is_a_lookup_and_a_masked_write(is_item: list[bool], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.tensor(is_item, dtype=torch.bool)
    ids = torch.randint(0, VOCAB, (len(is_item),), generator=generator)
    table, rows = torch.randn(VOCAB, 7, generator=generator), torch.randn(sum(is_item), 7, generator=generator)
    index = (mask.cumsum(0) - 1).masked_fill(~mask, -1)
    wanted = functional.embedding(ids, table).masked_scatter(mask[:, None], rows)
    assert torch.equal(embed_and_merge_reference(ids, table, rows, index), wanted)

"""Rows of a draft model's states: a sequence goes on from any of its newest ones, or begins again."""

from __future__ import annotations

from corellm_speculative.draft_states import DraftRows


def step(rows: DraftRows, request_id: str, start: int, num_tokens: int) -> None:
    """Read tokens one by one, each with a state behind it."""
    rows.begin_step()
    for position in range(start, start + num_tokens):
        rows.read(request_id, position)
        rows.write(request_id, position + 1)
    rows.commit()
    rows.check_integrity()


def test_a_sequence_that_begins_again_has_no_states_of_before() -> None:
    """Its text is what it was where a token came that the draft model does not know."""
    rows = DraftRows(2, 3)
    for _ in range(9):
        step(rows, "a", 0, 1)
        step(rows, "b", 0, 3)
    assert rows.has("a", 1)
    step(rows, "a", 1, 1)
    assert rows.read("a", 2) is not None
    assert [rows.has("b", count) for count in (1, 2, 3, 4)] == [True, True, True, False]

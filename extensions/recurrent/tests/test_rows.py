"""A step reads one row and writes another; only a committed step changes whose row is whose."""

from __future__ import annotations

from random import Random

import pytest

from corellm_recurrent.rows import DUMMY, NO_ONE, Rows


def _step(rows: Rows, request_id: str, start: int, num_tokens: int) -> tuple[int | None, int]:
    rows.begin_step()
    return rows.read(request_id, start), rows.write(request_id, start + num_tokens)


def test_a_step_that_is_not_committed_leaves_the_state() -> None:
    """It can run again, from the same row."""
    rows = Rows(1)
    assert _step(rows, "a", 0, 5)[0] is None
    rows.commit()
    first = _step(rows, "a", 5, 3)
    again = _step(rows, "a", 5, 3)
    assert again[0] == first[0]
    assert again[1] != again[0]
    rows.commit()
    assert _step(rows, "a", 8, 1)[0] == again[1]
    rows.check_integrity()


def test_a_state_of_other_tokens_is_a_bug() -> None:
    """A chunk that does not go on where the state ends must not run."""
    rows = Rows(2)
    _step(rows, "a", 0, 5)
    rows.commit()
    with pytest.raises(AssertionError, match=r"'a' .* 6"):
        _step(rows, "a", 6, 1)
    with pytest.raises(AssertionError, match=r"'b' .* 1"):
        _step(rows, "b", 1, 1)


def test_dummies_share_the_row_of_no_one() -> None:
    """They take no row, however many there are."""
    rows = Rows(1)
    assert {_step(rows, DUMMY, 0, 4)[1] for _ in range(9)} == {NO_ONE}
    rows.commit()
    assert rows.num_held == 0
    rows.check_integrity()


def test_a_row_that_is_left_out_is_noticed() -> None:
    """The check of integrity can fail."""
    rows = Rows(2)
    _step(rows, "a", 0, 1)
    rows.commit()
    rows._held.clear()
    with pytest.raises(AssertionError, match="state rows"):
        rows.check_integrity()


@pytest.mark.parametrize("num_right", range(4))
def test_a_sequence_goes_on_behind_the_drafts_that_were_right(num_right: int) -> None:
    """From the state after them; the rows of the others are there again when all have to write."""
    rows, before = Rows(2, most_drafts=3), dict[str, list[int]]()
    for name in "ab":
        _step(rows, name, 0, 5)
        rows.commit()
    for start in (5, 6 + num_right):
        rows.begin_step()
        written = {}
        for name in "ab":
            pairs = [(rows.read(name, start + i), rows.write(name, start + i + 1)) for i in range(4)]
            read, written[name] = [[*column] for column in zip(*pairs, strict=True)]
            assert read[1:] == written[name][:3]
            if start > 5:
                assert read[0] == before[name][num_right]
        rows.check_integrity()
        rows.commit()
        before = written
    assert [held.num_tokens for held in rows.release("a")] == [7 + num_right + i for i in range(4)]
    rows.check_integrity()


@pytest.mark.parametrize("seed", range(20))
def test_no_row_has_two_owners(seed: int) -> None:
    """As many sequences as fit begin, go on, fail, are released and come back, in any order."""
    rng, rows, lengths, parked = Random(seed), Rows(4), dict[str, int](), dict[str, int]()
    for _ in range(300):
        if lengths and rng.random() < 0.2:
            name = rng.choice(list(lengths))
            assert [held.num_tokens for held in rows.release(name)] == [lengths[name]]
            if rng.random() < 0.5:
                parked[name] = lengths[name]
            del lengths[name]
        if parked and len(lengths) < 4 and rng.random() < 0.3:
            name, lengths[name] = (back := parked.popitem())[0], back[1]
            rows.place(name, lengths[name])
        taking = rng.sample(list(lengths), rng.randint(0, len(lengths)))
        taking += [f"new{rng.random()}" for _ in range(rng.randint(0, 4 - len(lengths)))]
        rows.begin_step()
        written = [
            rows.write(name, lengths.get(name, 0) + 1)
            for name in taking
            if rows.read(name, lengths.get(name, 0)) != NO_ONE
        ]
        assert len(set(written)) == len(taking)
        rows.check_integrity()
        if rng.random() < 0.7:
            rows.commit()
            lengths |= {name: lengths.get(name, 0) + 1 for name in taking}
        rows.check_integrity()
    rows.release_all()
    assert rows.num_held == 0
    rows.check_integrity()


def test_rows_are_whole_again_after_any_interrupt() -> None:
    """An interrupt may leave a row with two owners, or with none."""
    rows = Rows(3)
    rows.begin_step()
    rows.write("a", 4)
    rows.commit()
    rows.write("a", 5)
    rows._free += [1, 1]  # as between two lines of `commit`
    rows._held.pop("a")
    rows.release_all()
    rows.check_integrity()
    assert rows.num_held == 0
    assert len({rows.write(name, 1) for name in "abc"}) == 3

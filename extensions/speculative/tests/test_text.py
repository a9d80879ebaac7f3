"""Where a text went on: the longest of the newest places, as a search through all of it finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corellm_speculative.outputs import Outputs
from corellm_speculative.text import NONE, Text

TOKENS = st.lists(st.integers(0, 2), max_size=60)


def searched(text: list[int], last: list[int], shortest: int, longest: int) -> tuple[int, int] | None:
    """Return the place and its length among the newest eight with the last `shortest` tokens before them."""
    last, lengths = last[-longest:], {}
    for position in range(len(text) - 1, 0, -1):
        length = 0
        while length < min(position, len(last)) and text[position - 1 - length] == last[-1 - length]:
            length += 1
        if length >= shortest and len(lengths) < 8:
            lengths[position] = length
    return max(((length, position) for position, length in lengths.items()), default=(0, 0))[::-1] if lengths else None


@given(TOKENS, st.lists(st.integers(1, 5), max_size=20), st.integers(1, 3), st.integers(0, 4))
def test_the_longest_of_the_newest_places_is_found(
    tokens: list[int], pieces: list[int], shortest: int, more: int
) -> None:
    """Also where tokens came in pieces."""
    text, rest = Text(shortest, shortest + more), list(tokens)
    for piece in [*pieces, len(rest)]:
        text.extend(rest[:piece])
        del rest[:piece]
    found = text.find(text)
    wanted = searched(tokens, tokens, shortest, shortest + more)
    assert (found and (found.position, found.length)) == wanted
    if found is not None:
        assert [found.ahead(i) for i in range(3)] == [
            tokens[found.position + i % (len(tokens) - found.position)] for i in range(3)
        ]


@given(st.lists(TOKENS, min_size=1, max_size=12), TOKENS, st.integers(1, 5))
def test_outputs_that_were_dropped_are_as_if_they_had_never_been(
    outputs: list[list[int]], last: list[int], most: int
) -> None:
    """By their number; the others are found as in a text of them alone, and no run of a dropped one is kept."""
    kept, alone = Outputs(2, 6, most), Outputs(2, 6, 100)
    for output in outputs:
        kept.add(None, output)
    long_enough = [output for output in outputs if len(output) > 1]
    for output in long_enough[-most:]:
        alone.add(None, output)
    asked = Text(2, 6)
    asked.extend(last)
    there, wanted = kept.of(None), alone.of(None)
    assert (there is None) == (wanted is None)
    if there is None or wanted is None:
        return
    found, expected = there.find(asked), wanted.find(asked)
    assert (found and (found.length, found.token)) == (expected and (expected.length, expected.token))
    assert there._newest.keys() == wanted._newest.keys()


def test_outputs_have_a_bound_of_tokens() -> None:
    """However long they are; of one that is longer than the bound the end is kept."""
    outputs = Outputs(2, 6, 100, most_tokens=50)
    for size in (20, 30, 7, 500, 3):
        outputs.add(None, range(size))
        assert outputs.num_tokens <= 50
        text = outputs.of(None)
        assert text is not None
        assert len(text) == outputs.num_tokens
    outputs.add(None, range(500))
    asked = Text(2, 6)
    asked.extend([497, 498])
    text = outputs.of(None)
    assert text is not None
    place = text.find(asked)
    assert place is not None
    assert place.token == 499
    assert place.behind().token == NONE


def test_outputs_of_another_salt_are_not_seen() -> None:
    """Nor those of none."""
    outputs = Outputs(2, 6, 100)
    outputs.add("one", [1, 2, 3, 4])
    outputs.add(None, [5, 6, 7, 8])
    asked = Text(2, 6)
    asked.extend([1, 2, 3])
    found = {salt: text.find(asked) for salt in ("one", "two", None) if (text := outputs.of(salt)) is not None}
    assert found.keys() == {"one", None}
    assert found[None] is None
    assert found["one"] is not None

"""Stop strings are found as a search on the whole text would find them, however the text comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from corellm.frontend.stop_strings import StopStringMatcher


def search(text: str, stop: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The text up to the stop string that ends first (of several, the longest), by trying every prefix."""
    for end in range(1, len(text) + 1):
        ending = [string for string in stop if text[:end].endswith(string)]
        if ending:
            found = max(ending, key=len)
            return text[: end if include else end - len(found)], found
    return text, None


STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)
PIECES = st.lists(st.text("aab.", max_size=4), max_size=12)


@given(pieces=PIECES, stop=STOPS, include=st.booleans())
@example(pieces=["b", "aa", "ab"], stop=["aab"], include=False)
@example(pieces=["abab", "ab", "aab"], stop=["ababaa", "bb"], include=True)
@example(pieces=["ab", "ab"], stop=["abab", "bab"], include=False)
def test_any_split_gives_the_same_match(pieces: list[str], stop: list[str], include: bool) -> None:
    """Text by pieces gives what a search of the whole gives, and holds back real beginnings of stop strings only."""
    matcher = StopStringMatcher(stop, include=include)
    released, seen = "", ""
    for piece in pieces:
        released += matcher.append(piece)
        seen += piece
        if matcher.matched is None:
            beginnings = [s[:length] for s in stop for length in range(1, len(s))]
            held = max((b for b in beginnings if seen.endswith(b)), key=len, default="")
            assert released + held == seen
    assert (released + matcher.flush(), matcher.matched) == search("".join(pieces), stop, include)
    assert matcher.flush() == ""


def test_text_before_min_tokens_is_passed_over() -> None:
    """What is skipped is given out at once, is not searched, and is no beginning of a later match."""
    matcher = StopStringMatcher(["END"])
    assert matcher.skip("xENDE") == "xENDE"
    assert matcher.append("ND E") == "ND "
    assert matcher.append("ND more") == ""
    assert matcher.matched == "END"
    assert matcher.append("later") + matcher.skip("later") + matcher.flush() == ""


def test_held_text_is_released_by_skip_and_flush() -> None:
    """Nothing that was held back is lost."""
    matcher = StopStringMatcher(["END"])
    assert [matcher.append("aE"), matcher.append("N"), matcher.flush(), matcher.matched] == ["a", "", "EN", None]
    matcher = StopStringMatcher(["END"])
    assert [matcher.append("aE"), matcher.skip("N"), matcher.append("ND"), matcher.flush()] == ["a", "EN", "ND", ""]


MIXED = st.lists(st.one_of(st.text("ab", max_size=3), st.sampled_from(["<s>", "</s>"])), max_size=12)
MIXED_STOPS = st.lists(
    st.lists(st.sampled_from(["a", "b", "<s>", "</s>"]), min_size=1, max_size=3).map("".join), max_size=4
)


@given(pieces=MIXED, stop=MIXED_STOPS, include=st.booleans())
@example(pieces=["a", "</s>"], stop=["</s>"], include=False)
@example(pieces=["a", "<s>", "b"], stop=["ab"], include=True)
@example(pieces=["a", "<s>", "b", "a"], stop=["a<s>bb", "<s>ba"], include=False)
def test_text_that_is_left_out(pieces: list[str], stop: list[str], include: bool) -> None:
    """A stop string with a special token is found in the text with them, another in the text without.

    Oracle: a search of every beginning of the text, in both forms.
    """
    left_out = {"<s>", "</s>"}
    matcher = StopStringMatcher(stop, include=include, left_out=left_out)
    released = "".join(matcher.append(piece, left_out=piece in left_out) for piece in pieces) + matcher.flush()
    marked = [(c, piece in left_out) for piece in pieces for c in piece]
    for end in range(1, len(marked) + 1):
        found: list[tuple[str, str]] = []
        for string in stop:
            reads_all = any(text in string for text in left_out)
            read = [i for i, (_, out) in enumerate(marked[:end]) if reads_all or not out]
            if read and read[-1] == end - 1 and "".join(marked[i][0] for i in read).endswith(string):
                start = read[-len(string)]
                found.append((string, "".join(c for c, out in marked[:start] if not out)))
        if found:
            string, before = max(found, key=lambda pair: len(pair[0]))
            assert (released, matcher.matched) == (before + string if include else before, string)
            return
    assert (released, matcher.matched) == ("".join(c for c, out in marked if not out), None)

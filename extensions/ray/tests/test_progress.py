"""What a reader has of a request is left out when another replica computes it again."""

from __future__ import annotations

import pytest

from corellm.engine.process.messages import Delta
from corellm.errors import EngineLostError
from corellm.outputs import CompletionOutput
from corellm_ray.progress import Progress


def delta(*pieces: tuple[int, str, list[int]], finished: bool = False) -> Delta:
    """What is new: index, text and tokens of completions."""
    reason = "length" if finished else None
    outputs = [CompletionOutput(index, text, list(tokens), finish_reason=reason) for index, text, tokens in pieces]
    return Delta("", outputs, finished)


def told(progress: Progress, deltas: list[Delta]) -> dict[int, tuple[str, list[int]]]:
    """What the reader gets, by completion."""
    whole: dict[int, tuple[str, list[int]]] = {}
    for one in deltas:
        news = progress.news(one)
        for output in news.outputs if news else ():
            text, tokens = whole.get(output.index, ("", []))
            whole[output.index] = (text + output.text, tokens + output.token_ids)
    return whole


@pytest.mark.parametrize("lost_after", range(4))
@pytest.mark.parametrize("step", [1, 2, 3])
def test_another_replica_goes_on(lost_after: int, step: int) -> None:
    """However many tokens the second one puts into a delta, and though it is lost, too."""
    tokens, words = list(range(8)), [f"w{number} " for number in range(8)]

    def deltas(size: int) -> list[Delta]:
        return [
            delta(*((index, "".join(words[at : at + size]), tokens[at : at + size]) for index in (0, 1)),
                  finished=at + size >= 8)
            for at in range(0, 8, size)
        ]  # fmt: skip

    progress = Progress()
    progress.begin_again()
    parts = [told(progress, deltas(1)[:lost_after])]
    for size, end in ((step, 1), (step, None)):
        progress.begin_again()
        parts.append(told(progress, deltas(size)[:end]))
    for index in (0, 1):
        whole = [part.get(index, ("", [])) for part in parts]
        assert "".join(text for text, _ in whole) == "".join(words)
        assert [token for _, some in whole for token in some] == tokens


@pytest.mark.parametrize("other", [delta((0, "b", [2])), delta((0, "a", [1]), finished=True)])
def test_other_tokens_are_an_error(other: Delta) -> None:
    """A reader never gets a text that two replicas disagree on."""
    progress = Progress()
    progress.begin_again()
    told(progress, [delta((0, "a", [1])), delta((0, "c", [3]))])
    progress.begin_again()
    with pytest.raises(EngineLostError, match="computes something else"):
        told(progress, [other])

"""What is said when: segments of a text, and how files of subtitles write them.

Knows seconds and text; knows neither tokens of times nor models.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Word:
    """A word, with the punctuation at it."""

    start: float
    """Seconds from the beginning of the audio."""
    end: float
    text: str
    """The word, with the space before it if there is one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Some words that are said together."""

    start: float
    """Seconds from the beginning of the audio."""
    end: float
    text: str
    token_ids: list[int]
    """Tokens of the text, and of its times."""
    window: float = 0.0
    """Seconds from the beginning of the audio to that of the window in which it was heard."""
    mean_logprob: float = 0.0
    """Mean log-probability of the tokens of that window."""
    temperature: float = 0.0
    """Temperature at which its text was sampled."""
    no_speech_prob: float | None = None
    """Probability that nobody speaks in that window; None where that was not asked for."""
    token_times: list[float] = field(default_factory=list)
    """Until when each token was heard, in seconds from the beginning of the audio; empty if that was not asked for."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What is said in one audio item."""

    text: str
    token_ids: list[int]
    """Tokens of all segments."""
    seconds: float | None
    """The audio's length; None if the model's family does not say its rate."""
    language: str | None = None
    """That is spoken, or in which the text was asked for; None if the model does not say."""
    segments: list[Segment] = field(default_factory=list)
    """Empty for a model that tells no times."""
    words: list[Word] = field(default_factory=list)
    """Empty where their times were not asked for."""


def srt(segments: Iterable[Segment]) -> str:
    """Return a file of subtitles in the format of SubRip."""
    return "".join(
        f"{number}\n{_time(one.start, ',')} --> {_time(one.end, ',')}\n{_line(one)}\n\n"
        for number, one in enumerate(segments, 1)
    )


def vtt(segments: Iterable[Segment]) -> str:
    """Return a file of subtitles in the format of WebVTT."""
    cues = (f"{_time(one.start, '.')} --> {_time(one.end, '.')}\n{_line(one)}\n\n" for one in segments)
    return "WEBVTT\n\n" + "".join(cues)


def _time(seconds: float, mark: str) -> str:
    """Return a time as `00:01:02.345`."""
    thousandths = round(seconds * 1000)
    minutes, thousandths = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{thousandths // 1000:02d}{mark}{thousandths % 1000:03d}"


def _line(segment: Segment) -> str:
    """Return a segment's text on one line, in which nothing looks like another cue."""
    return " ".join(segment.text.replace("-->", "->").split())

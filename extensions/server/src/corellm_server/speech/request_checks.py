"""Which fields of a request for a transcription go together, and which the model cannot do.

Knows fields; knows neither engines nor audio.
"""

from __future__ import annotations

from corellm.hookspecs import SpeechForm
from corellm_server.errors import ApiError
from corellm_server.requests.audio import TranscriptionRequest

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_WITH_TIMES = frozenset({"srt", "verbose_json", "vtt"})


def check_format(request: TranscriptionRequest) -> None:
    """Refuse formats that there are not, and fields that do not go with one.

    Raises:
        ApiError: names the field.
    """
    given = request.response_format
    if given not in FORMATS:
        raise ApiError(
            400, f"response_format must be one of {', '.join(FORMATS)}, got {given!r:.100}", param="response_format",
            code="unsupported_parameter",
        )  # fmt: skip
    if request.stream and given != "json":
        raise ApiError(
            400, "stream sends events of JSON without times; leave response_format out", param="response_format"
        )
    for wanted in request.timestamp_granularities or ():
        if wanted not in ("segment", "word"):
            raise ApiError(
                400, f"timestamp_granularities must be 'segment' or 'word', got {wanted!r:.100}",
                param="timestamp_granularities",
            )  # fmt: skip
    if request.timestamp_granularities and given != "verbose_json":
        raise ApiError(
            400, "timestamp_granularities needs response_format verbose_json", param="timestamp_granularities"
        )


def wants_times(request: TranscriptionRequest) -> bool:
    """Whether the response has times."""
    return request.response_format in _WITH_TIMES


def wants_words(request: TranscriptionRequest) -> bool:
    """Whether the response has times of words."""
    return "word" in (request.timestamp_granularities or ())


def check_times(request: TranscriptionRequest, form: SpeechForm | None) -> None:
    """Refuse what needs a model that tells times, and what such a model cannot be told.

    Raises:
        ApiError: names the field.
    """
    if wants_times(request) and (form is None or form.times is None):
        raise ApiError(
            400, f"response_format {request.response_format!r}: this model tells no times; use json or text",
            param="response_format", code="unsupported_parameter",
        )  # fmt: skip
    if wants_words(request) and form is not None and form.times is not None and not form.times.heads:
        raise ApiError(
            400, "timestamp_granularities: this checkpoint does not say which attention finds words in the audio "
            "(alignment_heads in generation_config.json); ask for 'segment'",
            param="timestamp_granularities", code="unsupported_parameter",
        )  # fmt: skip

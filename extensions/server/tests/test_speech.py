"""Audio of any length over HTTP: times and formats, by OpenAI's client; what is found is `LLM.transcribe`'s."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from openai.types.audio import TranscriptionVerbose, TranslationVerbose

from corellm import LLM, AsyncLLM, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm_qwen_audio.tiny import make_tiny_checkpoint as make_qwen_audio
from corellm_server.errors import ApiError
from corellm_server.speech.request_checks import check_times
from corellm_speech import Transcript, srt, vtt
from extensions.server.tests.conftest import MODEL, Running, serving
from extensions.server.tests.test_promises import error_of
from extensions.server.tests.test_transcriptions import form
from extensions.speech.tests.sounds import RATE, chirps
from plugins.transformers.tests.test_encoder_decoders import whisper

TOKENS = 24
SECONDS = {"short": 1.5, "long": 4.3}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper, which reads two seconds at once, and says by which heads words are found."""
    return whisper(tmp_path_factory.mktemp("whisper"), language=None, alignment_heads=[[0, 1], [1, 2]])


@pytest.fixture(scope="module")
def running(path: Path) -> Iterator[Running]:
    """It, served, its engine in another process."""
    llm = ProcessLLM(str(path), dtype="float32", max_num_seqs=4)
    with serving(llm, max_body_bytes=400_000) as found:
        yield found
    llm.close()


@pytest.fixture(scope="module")
def wanted(path: Path) -> dict[str, list[Transcript]]:
    """What is found offline: transcripts and translations of both sounds."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    with LLM(str(path), dtype="float32") as llm:
        sounds = [soundfile.read(io.BytesIO(file_of(name)), dtype="float32") for name in SECONDS]
        return {
            "transcriptions": llm.transcribe(list(sounds), sampling_params=params),
            "translations": llm.transcribe(list(sounds), translate=True, sampling_params=params),
            "words": llm.transcribe(list(sounds), word_timestamps=True, sampling_params=params),
        }


def file_of(name: str) -> bytes:
    """A sound as a file."""
    stream = io.BytesIO()
    soundfile.write(stream, chirps(SECONDS[name], len(name)), RATE, format="WAV")
    return stream.getvalue()


def ask(client: openai.OpenAI, endpoint: str, name: str, **fields: Any) -> Any:
    """The client's result for a sound."""
    create = getattr(client.audio, endpoint).create
    return create(file=("a.wav", file_of(name)), model=MODEL, extra_body={"max_completion_tokens": TOKENS}, **fields)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's translations, by itself
@pytest.mark.parametrize("endpoint", ["transcriptions", "translations"])
@pytest.mark.parametrize("name", SECONDS)
def test_formats_with_times(running: Running, wanted: dict[str, list[Transcript]], endpoint: str, name: str) -> None:
    """What is found offline, in each format; objects have all fields of the client's types."""
    found = wanted[endpoint][list(SECONDS).index(name)]
    kind = TranscriptionVerbose if endpoint == "transcriptions" else TranslationVerbose
    with running.client() as client:
        verbose = ask(client, endpoint, name, response_format="verbose_json")
        files = {one: ask(client, endpoint, name, response_format=one) for one in ("srt", "vtt")}
    assert isinstance(verbose, kind)
    assert verbose.duration == pytest.approx(SECONDS[name])
    assert verbose.language == ("english" if endpoint == "translations" else found.language)
    assert verbose.text == found.text
    assert [(one.start, one.end, one.text, one.tokens) for one in verbose.segments] == [
        (one.start, one.end, one.text, one.token_ids) for one in found.segments
    ]
    assert [one.id for one in verbose.segments] == list(range(len(found.segments)))
    assert all(one.avg_logprob < 0 and one.compression_ratio > 0 for one in verbose.segments)
    assert [one.seek for one in verbose.segments] == [round(100 * one.window) for one in found.segments]
    assert files == {"srt": srt(found.segments), "vtt": vtt(found.segments)}


def test_long_audio_without_times(running: Running, wanted: dict[str, list[Transcript]]) -> None:
    """As an object, as text, and as events, which come window by window; tokens are counted for all windows."""
    found = wanted["transcriptions"][1]
    with running.client() as client:
        whole = ask(client, "transcriptions", "long")
        text = ask(client, "transcriptions", "long", response_format="text")
        *deltas, done = ask(client, "transcriptions", "long", stream=True)
    assert whole.text == text == found.text
    assert "".join(event.delta for event in deltas) == found.text == done.text
    assert len(deltas) > 2
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert done.usage.model_dump() == whole.usage.model_dump()
    assert whole.usage.output_tokens > len(found.segments)


@pytest.mark.parametrize("name", SECONDS)
def test_times_of_words(running: Running, wanted: dict[str, list[Transcript]], name: str) -> None:
    """Beside segments or alone; the engine, in another process, looks at each window twice."""
    found = wanted["words"][list(SECONDS).index(name)]
    verbose = {"response_format": "verbose_json"}
    with running.client() as client:
        both = ask(client, "transcriptions", name, timestamp_granularities=["segment", "word"], **verbose)
        alone = ask(client, "transcriptions", name, timestamp_granularities=["word"], **verbose)
    assert [(one.word, one.start, one.end) for one in both.words] == [
        (one.text.strip(), one.start, one.end) for one in found.words
    ]
    assert alone.words == both.words
    assert alone.segments is None
    assert [one.text for one in both.segments] == [one.text for one in found.segments]


def test_words_that_are_not_found() -> None:
    """A checkpoint that names no heads is asked for segments."""
    body: Any = SimpleNamespace(response_format="verbose_json", timestamp_granularities=["word"])
    form: Any = SimpleNamespace(times=SimpleNamespace(heads=()))
    with pytest.raises(ApiError, match="alignment_heads") as caught:
        check_times(body, form)
    assert caught.value.param == "timestamp_granularities"


def test_the_language_is_heard_before_the_prompt(running: Running, path: Path) -> None:
    """Short audio, without times: as offline, also streamed; one form is asked in two requests to the engine."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    sound, _ = soundfile.read(io.BytesIO(file_of("short")), dtype="float32")
    with LLM(str(path), dtype="float32") as llm:
        (found,) = llm.transcribe((sound, RATE), prompt="one two", times=False, sampling_params=params)
    with running.client() as client:
        assert ask(client, "transcriptions", "short", prompt="one two").text == found.text
        *_, done = ask(client, "transcriptions", "short", prompt="one two", stream=True)
    assert done.text == found.text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"response_format": "diarized_json"}, "response_format"),
    ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
    ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
    ({"timestamp_granularities[]": "page", "response_format": "verbose_json"}, "timestamp_granularities"),
    ({"stream": "true", "response_format": "srt"}, "response_format"),
    ({"language": "xx", "response_format": "vtt"}, "language"),
    ({"prompt": "<|1.00|>", "response_format": "vtt"}, "prompt"),
    ({"keywords[]": "Ada", "response_format": "vtt"}, "keywords"),
    ({"file": ("a.wav", b"RIFFxxxxWAVE"), "response_format": "srt"}, "file"),
    ({"max_completion_tokens": "9999", "response_format": "srt"}, "file"),
]


def test_what_is_wrong_with_times(running: Running) -> None:
    """400 with the field's name; a good request is served afterwards."""
    for fields, param in WRONG:
        assert error_of(form(running, **fields), 400)["param"] == param, fields
    segments = form(running, **{"response_format": "verbose_json", "timestamp_granularities[]": "segment"})
    assert segments.json()["segments"]


def test_a_model_without_times_is_asked_for_pieces(tmp_path: Path) -> None:
    """Long audio is cut in its pause, and the texts are joined; formats with times are refused."""
    make_qwen_audio(tmp_path, seconds=2)
    sounds = [chirps(1.7, 1), chirps(1.2, 2)]
    pause = np.zeros(RATE // 5, dtype=np.float32)
    samples = np.concatenate([sounds[0], pause, sounds[1]])
    stream = io.BytesIO()
    soundfile.write(stream, samples, RATE, format="WAV", subtype="FLOAT")
    cut = len(sounds[0]) + len(pause) // 2
    llm = AsyncLLM(str(tmp_path), dtype="float32", max_num_seqs=2)
    with serving(llm, max_body_bytes=400_000) as found:
        whole = form(found, file=("a.wav", stream.getvalue())).json()
        texts = []
        for piece in (samples[:cut], samples[cut:]):
            stream = io.BytesIO()
            soundfile.write(stream, piece, RATE, format="WAV", subtype="FLOAT")
            texts.append(form(found, file=("a.wav", stream.getvalue())).json()["text"])
        assert error_of(form(found, response_format="srt"), 400)["param"] == "response_format"
    llm.close()
    assert len(set(texts)) == 2
    assert whole["text"] == f"{texts[0]} {texts[1].strip()}"
    assert whole["usage"]["output_tokens"] == 12

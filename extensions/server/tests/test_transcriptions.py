"""Audio to text over HTTP, by OpenAI's client: outputs of the same conversation, forms that are wrong, other models."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corellm import LLM, AsyncLLM, SamplingParams
from corellm_qwen_audio.tiny import make_tiny_checkpoint
from corellm_server.errors import ApiError
from corellm_server.form import UploadedFile, read_form
from corellm_transformers.tiny import make_tiny_checkpoint as make_generic_checkpoint
from extensions.server.tests.conftest import MODEL, Running, chat, serving, user
from extensions.server.tests.test_promises import error_of

URL = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose model takes audio."""
    path = tmp_path_factory.mktemp("audio")
    make_tiny_checkpoint(path, seconds=2)
    llm = AsyncLLM(str(path), dtype="float32", max_num_seqs=8)
    with serving(llm, max_body_bytes=200_000) as running:
        yield running
    llm.close()


def wav(seed: int = 1, samples: int = 9000) -> bytes:
    """Noise as a file."""
    stream = io.BytesIO()
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, samples)
    soundfile.write(stream, noise, 16_000, format="WAV")
    return stream.getvalue()


def form(running: Running, url: str = URL, **fields: Any) -> Any:
    """The response to a form."""
    parts = {"model": MODEL, "max_completion_tokens": "6", "file": ("a.wav", wav()), **fields}
    files = {name: (None, value) if isinstance(value, str) else value for name, value in parts.items() if value}
    return running.post(url, files=files)


def test_an_encoder_decoder_is_told_what_its_family_can_be(tmp_path: Path) -> None:
    """Nothing, a language, what was said before, and to translate: its texts are those of the engine's own prompts."""
    make_generic_checkpoint(tmp_path, architecture="WhisperForConditionalGeneration")
    llm = AsyncLLM(str(tmp_path), dtype="float32", max_num_seqs=2)
    with serving(llm, max_body_bytes=200_000) as running:
        texts = [
            form(running).json()["text"],
            form(running, language="en").json()["text"],
            form(running, **{"languages[]": "en"}, prompt="one two").json()["text"],
            form(running, "/v1/audio/translations").json()["text"],
        ]
        for fields, param in (
            ({"language": "xx"}, "language"), ({"prompt": "<|de|>"}, "prompt"), ({"keywords[]": "Ada"}, "keywords"),
        ):  # fmt: skip
            assert error_of(form(running, **fields), 400)["param"] == param
    llm.close()
    samples, rate = soundfile.read(io.BytesIO(wav()), dtype="float32")
    with LLM(str(tmp_path), dtype="float32") as alone:
        asked = (
            {"language": "en", "translate": False, "context": ""},
            {"language": "en", "translate": False, "context": "one two"},
            {"language": None, "translate": True, "context": ""},
        )
        tokens = [[], *(alone.engine.input_processor.transcription_prompt(**told) for told in asked)]
        prompts = [{"prompt_token_ids": ids, "multi_modal_data": {"audio": (samples, rate)}} for ids in tokens]
        outputs = alone.generate(prompts, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    assert texts == [output.outputs[0].text for output in outputs]
    assert len(set(texts)) == len(texts)


def said(running: Running, instruction: str, **fields: Any) -> str:
    """The same by a conversation."""
    import base64

    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav()).decode(), "format": "wav"}}
    body = chat(user(part, {"type": "text", "text": instruction}), **fields)
    return str(running.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"])


def test_the_official_client(listening: Running) -> None:
    """Whole, as text, and streamed: all the same, with numbers of tokens that add up."""
    with listening.client() as client:
        create, more = client.audio.transcriptions.create, {"max_completion_tokens": 6}
        whole = create(file=("a.wav", wav()), model=MODEL, extra_body=more)
        assert whole.text == said(listening, "Transcribe the audio.") != ""
        assert whole.usage is not None
        assert whole.usage.type == "tokens"
        details = whole.usage.input_token_details
        assert details is not None
        assert (details.audio_tokens or 0) > 5
        assert (details.audio_tokens or 0) + (details.text_tokens or 0) == whole.usage.input_tokens
        assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
        assert whole.usage.output_tokens == 6
        text: Any = create(file=("a.wav", wav()), model=MODEL, response_format="text", extra_body=more)
        assert text == whole.text
        *deltas, done = create(file=("a.wav", wav()), model=MODEL, stream=True, extra_body=more)
        assert "".join(event.delta for event in deltas if event.type == "transcript.text.delta") == whole.text
        assert done.type == "transcript.text.done"
        assert done.text == whole.text
        assert done.usage is not None
        assert done.usage.model_dump() == whole.usage.model_dump()
        with pytest.raises(openai.BadRequestError, match="tells no times") as caught:
            create(file=("a.wav", wav()), model=MODEL, response_format="srt")
        assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")


def test_what_the_model_is_told(listening: Running) -> None:
    """Language, words and context are in the instruction; sampling is greedy unless asked otherwise."""
    with listening.client() as client:
        got = client.audio.transcriptions.create(
            file=("a.wav", wav()), model=MODEL, language="en", keywords=["Ada", "Bob"], prompt="An interview.",
            extra_body={"max_completion_tokens": 6},
        )  # fmt: skip
    told = "Transcribe the audio. The language is en. It may have these words: Ada, Bob. Context: An interview."
    assert got.text == said(listening, told)
    warm = {form(listening, temperature="2").json()["text"] for _ in range(8)}
    assert len(warm) > 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"file": None}, "file"), ({"file": "text"}, "file"), ({"model": None}, "model"),
    ({"file": ("a.wav", b"")}, "file"), ({"file": ("a.wav", b"RIFFxxxxWAVE")}, "file"),
    ({"file": ("a.png", b"\x89PNG\r\n\x1a\n")}, "file"),
    ({"temperature": "-1"}, "temperature"), ({"temperature": "9"}, "temperature"),
    ({"temperature": "nan"}, "temperature"), ({"temperature": "x"}, "temperature"),
    ({"max_completion_tokens": "0"}, "max_completion_tokens"), ({"max_completion_tokens": "999999"}, "file"),
    ({"max_completion_tokens": "1.5"}, "max_completion_tokens"), ({"nonsense": "1"}, "nonsense"),
    ({"response_format": "vtt"}, "response_format"), ({"response_format": "verbose_json"}, "response_format"),
    ({"timestamp_granularities[]": "word"}, "timestamp_granularities"), ({"include[]": "logprobs"}, "include"),
    ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy"), ({"stream": "perhaps"}, "stream"),
    ({"stream": "true", "response_format": "text"}, "response_format"), ({"language[]": "en"}, "language"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [None, "true"])
def test_rows_6_and_10_wrong_forms(listening: Running, stream: str | None) -> None:
    """400 with the field's name, before a stream begins; a good request is served afterwards as before."""
    before = form(listening).json()
    for fields, param in WRONG:
        assert error_of(form(listening, **{"stream": stream, **fields}), 400)["param"] == param, fields
    assert error_of(form(listening, model="other"), 404)["code"] == "model_not_found"
    assert form(listening).json() == before


def test_rows_2_and_3_sizes_and_content_types(listening: Running) -> None:
    """Forms here only, JSON elsewhere only; large bodies are refused before they are read."""
    assert "multipart/form-data" in error_of(listening.post(URL, {"model": MODEL}), 415)["message"]
    assert error_of(form(listening, file=("a.wav", bytes(300_000))), 413)["code"] == "request_too_large"
    assert "application/json" in error_of(form(listening, "/v1/chat/completions"), 415)["message"]
    for body, kind in (
        (b"", ""), (b"", "; boundary=x"), (b"--x", "; boundary=x"), (b"--x\r\n\r\nabc\r\n--x--\r\n", "; boundary=x"),
        (b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\nabc", "; boundary=x"),
    ):  # fmt: skip
        response = listening.post(URL, content=body, headers={"Content-Type": "multipart/form-data" + kind})
        assert error_of(response, 400)["code"] == "invalid_form"


def test_a_model_without_audio(running: Running) -> None:
    """400; the model's name is looked at first."""
    assert "no audio" in error_of(form(running), 400)["message"]
    assert error_of(form(running, model="other"), 404)["param"] == "model"


def test_the_document_describes_the_form(running: Running) -> None:
    """As multipart, with the file as binary."""
    operation = running.get("/openapi.json").json()["paths"][URL]["post"]
    schema = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert schema["properties"]["file"]["format"] == "binary"
    assert schema["required"] == ["file", "model"]
    assert {"200", "400", "413", "415"} <= {*operation["responses"]}


# --- forms ----------------------------------------------------------------------------------------------------------


def part(name: str, content: bytes, *headers: str, more: str = "") -> bytes:
    lines = [f'Content-Disposition: form-data; name="{name}"{more}', *headers]
    return b"--x\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + content + b"\r\n"


KIND = b"multipart/form-data; boundary=x"


def test_forms() -> None:
    """Files, texts and lists; a file may hold its own boundary's beginning."""
    content = b"\r\n--\r\n-x--\r\n--y\r\n" * 100
    body = part("file", content, "Content-Type: audio/wav", more='; filename="../\xe9.wav"')
    body += part("include[]", b"a") + part("include[]", b"b") + part("prompt", "é".encode()) + b"--x--\r\n"
    assert read_form(body, KIND) == {"file": UploadedFile(content), "include": ["a", "b"], "prompt": "é"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (part("a", b"1") + part("a", b"2"), "'a' is there twice"),
        (part("a", b"1") + part("a[]", b"2"), "'a' is there twice"),
        (part("a", b"x" * 300_000), "larger than 262144 bytes"),
        (b"".join(part(f"a{i}", b"") for i in range(129)), "more than the 128 parts"),
        (part("a", b"\xff"), "not UTF-8"),
        (part("", b""), "no Content-Disposition"),
        (b"--x\r\nContent-Type: text/plain\r\n\r\n1\r\n", "no Content-Disposition"),
        (part("a", b"", *["A: b"] * 20), "not multipart"),
        (part("a", b"", "A: " + "b" * 9000), "not multipart"),
        (part("a" * 9000, b""), "not multipart"),
    ],
)
def test_wrong_forms(body: bytes, message: str) -> None:
    """Refused with what is wrong."""
    with pytest.raises(ApiError, match=message) as caught:
        read_form(body + b"--x--\r\n", KIND)
    assert caught.value.status == 400


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([b"--x", b"--", b"\r\n", b"\r", b"\n", b":", b"Content-Disposition", b"form-data", b"a"]))
)
def test_any_bytes_are_a_form_or_refused(pieces: list[bytes]) -> None:
    """Nothing but an `ApiError` comes out."""
    try:
        assert isinstance(read_form(b"".join(pieces), KIND), dict)
    except ApiError as error:
        assert error.code == "invalid_form"  # noqa: PT017

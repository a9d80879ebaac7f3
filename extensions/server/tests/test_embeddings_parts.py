"""Precomputed embeddings over HTTP: outputs of the offline API, off unless the operator says, nothing unpickled."""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from corellm import AsyncLLM, SamplingParams
from corellm.errors import MediaError
from corellm_qwen_audio.tiny import make_tiny_checkpoint
from corellm_server.embeddings import read_embeddings
from extensions.server.tests.conftest import MODEL, Running, chat, idle, image_part, serving, user
from extensions.server.tests.test_promises import CHAT, error_of
from tests.fixtures import wait_until

GREEDY = SamplingParams(temperature=0, max_tokens=6)


def encoded(tensor: Any, **more: Any) -> str:
    """A safetensors file as base64."""
    return base64.b64encode(save({"any": tensor, **more})).decode()


def embeds_part(value: Any, modality: str = "image") -> dict[str, Any]:
    return {"type": f"{modality}_embeds", f"{modality}_embeds": value}


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(dtype)


def width(llm: AsyncLLM) -> int:
    """The model's hidden size."""
    return int(llm.engine.context.hf_config.get_text_config().hidden_size)


@pytest.fixture(scope="module")
def taking(llm: AsyncLLM) -> Iterator[Running]:
    """A server that takes embeddings."""
    with serving(llm, enable_mm_embeds=True) as running:
        yield running


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_outputs_are_the_engines(taking: Running, llm: AsyncLLM, dtype: torch.dtype) -> None:
    """They are those of a prompt with `image_embeds`, with or without a dimension of one item."""
    embeddings = noise(5, width(llm), dtype=dtype)
    prompt = {"prompt": "USER: <image>\nWhat? ASSISTANT:", "multi_modal_data": {"image_embeds": embeddings[None]}}
    want = llm.engine.input_processor.process(prompt).token_ids
    texts = set()
    for tensor in (embeddings, embeddings[None]):
        body = chat(user(embeds_part(encoded(tensor)), {"type": "text", "text": "What?"}))
        response = taking.post(CHAT, body).json()
        assert response["usage"]["prompt_tokens"] == len(want)
        texts.add(response["choices"][0]["message"]["content"])
    other = taking.post(CHAT, chat(user(embeds_part(encoded(-embeddings)), {"type": "text", "text": "What?"}))).json()
    assert texts != {other["choices"][0]["message"]["content"]}
    assert len(texts) == 1


def test_audio_embeddings(tmp_path: Path) -> None:
    """A model that takes audio gets the same tokens as offline."""
    make_tiny_checkpoint(tmp_path, seconds=2)
    llm = AsyncLLM(str(tmp_path), dtype="float32")
    with serving(llm, enable_mm_embeds=True) as running:
        embeddings = noise(9, width(llm))
        part = embeds_part(encoded(embeddings), "audio")
        count = running.post("/tokenize", {"model": MODEL, "messages": user(part)}).json()["count"]
        offline = llm.engine.input_processor.process_chat(
            [{"role": "user", "content": [{"type": "audio_embeds", "audio_embeds": embeddings}]}]
        )
        assert count == len(offline.token_ids)
        assert [feature.precomputed for feature in offline.features] == [True]
        assert running.post(CHAT, chat(user(part))).json()["usage"]["completion_tokens"] == 6
    llm.close()


def test_off_unless_switched_on(running: Running) -> None:
    """The error names the option; nothing is decoded."""
    for value in (encoded(noise(5, 8)), "rubbish"):
        error = error_of(running.post(CHAT, chat(user("x", embeds_part(value)))), 400)
        assert error["param"] == "messages[0].content[1]"
        assert "--enable-mm-embeds" in error["message"]


MARKER: list[str] = []


class Evil:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return MARKER.append, ("unpickled",)


ENORMOUS_HEADER = b'{"a":{"dtype":"F32","shape":[18446744073709551615,0],"data_offsets":[0,0]}}'
ENORMOUS = len(ENORMOUS_HEADER).to_bytes(8, "little") + ENORMOUS_HEADER
"""No value, in a shape that torch cannot count."""


def saved_by_torch() -> bytes:
    stream = io.BytesIO()
    torch.save({"embeddings": noise(5, 8)}, stream)
    return stream.getvalue()


def test_row_18_malformed_embeddings(taking: Running, llm: AsyncLLM) -> None:
    """400 with the part; nothing is unpickled, and others go on."""
    size = width(llm)
    good = save({"any": noise(5, size)})
    before = taking.post(CHAT, chat(user(embeds_part(encoded(noise(5, size)))))).json()["choices"]
    infinite = noise(5, size)
    infinite[3, 1] = float("inf")
    values: list[tuple[Any, str]] = [
        (pickle.dumps(Evil()), "safetensors"), (saved_by_torch(), "safetensors"), (b"", "empty"),
        (b"1234567", "safetensors"), (ENORMOUS, "safetensors"),
        (good[:-1], "safetensors"), (good + b"x", "safetensors"), (b"\xff" * 8 + good[8:], "header"),
        (save({str(i): noise(1, 1) for i in range(100)}), "header"),
        (save({"a": noise(5, size), "b": noise(5, size)}), "got 2"), (save({}), "got 0"),
        (save({"a": noise(5, size + 1)}), f"hidden size {size}"), (save({"a": noise(size)}), "rank"),
        (save({"a": noise(2, 5, size)}), "rank"), (save({"a": noise(0, size)}), "at least 1"),
        (save({"a": noise(5, size).to(torch.int64)}), "dtype"), (save({"a": noise(5, size) > 0}), "dtype"),
        (save({"a": noise(5, size).to(torch.float8_e4m3fn)}), "dtype"), (save({"a": infinite}), "finite"),
        (save({"a": noise(5, size) * float("nan")}), "finite"),
    ]  # fmt: skip
    for content, message in values:
        part = embeds_part(base64.b64encode(content).decode())
        error = error_of(taking.post(CHAT, chat(user("x", part))), 400)
        assert error["param"] == "messages[0].content[1]", message
        assert message in error["message"], error
    for value in ("é", "a", "?" * 100, 5, {"a": "b"}, [1.0], None, {"url": "data:,"}):
        field = ".image_embeds.a" if value == {"a": "b"} else ""  # the unknown one itself
        param = error_of(taking.post(CHAT, chat(user(embeds_part(value)))), 400)["param"]
        assert param == f"messages[0].content[0]{field}", value
    both = user(image_part(1), embeds_part(encoded(noise(5, size))))
    assert "not both" in error_of(taking.post(CHAT, chat(both)), 400)["message"]
    large = encoded(noise(llm.max_model_len + 1, size))
    assert error_of(taking.post(CHAT, chat(user(embeds_part(large)))), 400)["code"] == "context_length_exceeded"
    assert MARKER == []
    assert taking.post(CHAT, chat(user(embeds_part(encoded(noise(5, size)))))).json()["choices"] == before
    wait_until(lambda: idle(taking))


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.integers(0, 10**6))
def test_mutated_files_are_refused_or_read(place: int, value: int, cut: int) -> None:
    """No error but a `MediaError`."""
    content = bytearray(save({"any": noise(3, 4)}))
    content[place % min(len(content), 90)] = value
    try:
        read_embeddings(base64.b64encode(content[: 1 + cut % (4 * len(content))]).decode())
    except MediaError as error:
        assert "safetensors" in str(error)  # noqa: PT017

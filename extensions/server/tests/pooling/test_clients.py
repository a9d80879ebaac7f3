"""OpenAI's client on `/v1/embeddings`: synchronous and not, floats and base64, errors as its exceptions."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from extensions.server.tests.conftest import MODEL, Running, image_part, user
from extensions.server.tests.pooling.conftest import ask

TEXTS = ["a red circle", "blue", "one two three"]


def vectors(response: CreateEmbeddingResponse) -> np.ndarray:
    """The embeddings of a response, as the client decoded them."""
    return np.array([one.embedding for one in response.data], np.float32)


def test_both_clients(embedder: Running) -> None:
    """They ask for base64 unless told otherwise; texts, token ids, dimensions and usage."""
    with embedder.client() as one:
        first = one.embeddings.create(model=MODEL, input=TEXTS)
        floats = one.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float", user="me")
        short = one.embeddings.create(model=MODEL, input=[[1, 40, 50], [60]], dimensions=8)
    np.testing.assert_allclose(vectors(first), vectors(floats), rtol=0, atol=1e-6)
    assert (first.model, first.object) == (MODEL, "list")
    assert first.usage.prompt_tokens == first.usage.total_tokens > len(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors(short), axis=1), 1, rtol=0, atol=1e-5)
    assert vectors(short).shape == (2, 8)

    async def main() -> CreateEmbeddingResponse:
        async with openai.AsyncOpenAI(base_url=embedder.url + "/v1", api_key="x", max_retries=0) as client:
            asked = [client.embeddings.create(model=MODEL, input=text) for text in TEXTS]
            same = await asyncio.gather(*asked)
            np.testing.assert_allclose(
                np.concatenate([vectors(one) for one in same]), vectors(first), rtol=0, atol=1e-6
            )
            extra = {"messages": user(image_part(1), "what?")}
            return await client.embeddings.create(model=MODEL, input=openai.omit, extra_body=extra)  # type: ignore[arg-type]

    assert vectors(asyncio.run(main())).shape == (1, 64)


def test_base64_has_the_same_bits(embedder: Running) -> None:
    """The numbers of one vector as JSON, alone in its batch, are the float32 that base64 has."""
    both = [ask(embedder, "/v1/embeddings", input="one", encoding_format=form) for form in ("float", "base64")]
    (number,), (encoded,) = (one["data"] for one in both)
    raw = np.frombuffer(base64.b64decode(encoded["embedding"]), "<f4")
    np.testing.assert_array_equal(np.array(number["embedding"], np.float32), raw)


def test_errors_are_exceptions(embedder: Running, running: Running) -> None:
    """With the field that is wrong; a model that generates says what to start."""
    with embedder.client() as client, running.client() as generating:
        with pytest.raises(openai.BadRequestError, match="embeddings have 64") as caught:
            client.embeddings.create(model=MODEL, input="x", dimensions=65)
        assert caught.value.param == "dimensions"
        with pytest.raises(openai.BadRequestError, match="--convert embed") as caught:
            generating.embeddings.create(model=MODEL, input="x")
        assert caught.value.code == "task_not_supported"
        with pytest.raises(openai.BadRequestError, match="--runner generate"):
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="other", input="x")

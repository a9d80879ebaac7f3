"""The server does what its OpenAPI document says.

A few generated requests of each kind here; `make fuzz` sends many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types.responses import ResponseIncludable

import corellm_server
from corellm import AsyncLLM
from corellm_server import document as making
from corellm_server.endpoints.replies import ERRORS
from corellm_server.requests.chat import ChatRequest
from corellm_server.requests.responses import Includable
from extensions.server.tests.conftest import Running, serving
from extensions.server.tests.generated_requests import assert_as_documented, operations
from extensions.server.tests.test_promises import assert_serves

KEY = "a-key"
POOLING = "embeddings|pooling|classify|score|rerank"
OPEN = ("/health", "/ready")


@pytest.mark.parametrize("examples", [3, pytest.param(300, marks=pytest.mark.full)])
def test_generated_requests(llm: AsyncLLM, examples: int, tmp_path: Path) -> None:
    """No 5xx; no status, header or content type that is undocumented; bodies are as documented; wrong data are refused.

    Few requests go to the endpoints of pooling, which this model refuses: `pooling/test_operation.py` has models that
    serve them.
    """
    options: dict[str, Any] = {"max_tokens": 4, "max_n": 2, "max_messages": 8, "request_timeout": 300}
    with serving(llm, api_key=[KEY], **options) as running:
        assert_as_documented(running, tmp_path, examples, key=KEY, refused=POOLING)
    with serving(llm) as running:
        assert_serves(running)


def test_what_is_documented(running: Running, llm: AsyncLLM) -> None:
    """Every operation has the statuses that it can have, and fields are documented though they have no effect."""
    documents = [running.get("/openapi.json").json()]
    with serving(llm, api_key=[KEY]) as with_key:
        documents.append(with_key.get("/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json())
    for document, has_keys in zip(documents, (False, True), strict=True):
        assert ("security" in document) == has_keys
        for (method, path), operation in operations(document).items():
            errors = {int(status) for status in operation["responses"]} - {200}
            if method == "post":
                assert errors == {*ERRORS} - ({401} if not has_keys else set()), path
            assert (401 in errors) == (has_keys and path not in OPEN), path
            assert (404 in errors) == (method == "post" or "{" in path), path
            assert operation["responses"]["200"]["content"], path
            assert all("X-Request-Id" in response["headers"] for response in operation["responses"].values())
    schema = documents[0]["components"]["schemas"]["ChatRequest"]
    assert {*schema["properties"]} == {*ChatRequest.model_fields, *ChatRequest.IGNORED, *ChatRequest.REFUSED}
    assert schema["properties"]["model"]["enum"] == ["tiny"]
    streamed = documents[0]["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(streamed) == {"application/json", "text/event-stream"}


def test_openais_types_wait_for_the_document() -> None:
    """One module imports them, which the document alone needs; a request's literal is the same as theirs."""
    sources = Path(corellm_server.__file__).parent.rglob("*.py")
    assert [source.name for source in sources if "from openai" in source.read_text()] == ["openai_types.py"]
    assert "\nfrom corellm_server.openai_types" not in Path(making.__file__).read_text()
    assert {*get_args(Includable)} == {*get_args(ResponseIncludable)}

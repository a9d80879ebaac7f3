"""Every field of OpenAI's and Anthropic's APIs is taken, ignored or refused: a new one in their packages fails here."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.audio import transcription_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from pydantic import ValidationError

from corellm.sampling_params import SamplingParams
from corellm.structured_outputs import StructuredOutputsParams
from corellm_decoding import BeamSearchParams
from corellm_server.errors import ApiError
from corellm_server.form import UploadedFile
from corellm_server.requests.audio import TranscriptionRequest
from corellm_server.requests.body import Body
from corellm_server.requests.chat import ChatRequest
from corellm_server.requests.completions import CompletionRequest
from corellm_server.requests.messages import MessagesRequest
from corellm_server.requests.pooling import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from corellm_server.requests.responses import ResponsesRequest
from corellm_server.requests.sampling import CompletionFields
from corellm_server.requests.tokens import DetokenizeRequest, TokenizeRequest

PUBLISHED = {
    ChatRequest: chat_create_params.CompletionCreateParamsBase,
    CompletionRequest: completion_create_params.CompletionCreateParamsBase,
    ResponsesRequest: response_create_params.ResponseCreateParamsBase,
    TranscriptionRequest: transcription_create_params.TranscriptionCreateParamsBase,
    EmbeddingRequest: embedding_create_params.EmbeddingCreateParams,
    MessagesRequest: message_create_params.MessageCreateParamsBase,
}
OTHERS = {"add_special_tokens"}
"""Fields of other servers that are ignored."""
OWN = (TokenizeRequest, DetokenizeRequest, ClassifyRequest, PoolingRequest, ScoreRequest, RerankRequest)


@pytest.mark.parametrize("body", PUBLISHED)
def test_every_field_is_decided(body: type[Body]) -> None:
    """Exactly one of: taken, ignored, refused."""
    theirs = {*get_type_hints(PUBLISHED[body]), "stream"}
    table = body.table()
    ours = [*table.taken, *table.ignored, *table.refused]
    assert sorted(theirs - set(ours)) == []
    assert len(ours) == len(set(ours))
    assert sorted({*table.ignored} - theirs - OTHERS) == []  # nothing else is ignored: an unknown field is an error


@pytest.mark.parametrize("body", PUBLISHED)
def test_what_is_not_taken(body: type[Body]) -> None:
    """Ignored fields may be anything; refused ones may be null or ask for nothing; others are unknown."""
    required = {"model": "m", "messages": [{}], "prompt": "x", "input": "x", "file": UploadedFile(b""), "max_tokens": 1}
    base = {name: value for name, value in required.items() if name in body.model_fields}
    for name in body.IGNORED:
        body.model_validate({**base, name: object()})
    for name, absent in body.REFUSED.items():
        for value in (None, *absent.neutral):
            body.model_validate({**base, name: value})
        with pytest.raises(ApiError, match=re.escape(absent.instead)) as caught:
            body.model_validate({**base, name: "something else"})
        assert caught.value.param == name
    with pytest.raises(ApiError, match="'model'") as caught:
        body.model_validate({**base, "modle": 1})
    assert (caught.value.param, caught.value.code) == ("modle", "unknown_parameter")


@pytest.mark.parametrize("body", [*PUBLISHED, *OWN])
def test_a_wrong_list_is_few_errors(body: type[Body]) -> None:
    """Each error takes a hundred times the memory of an element."""
    for name in body.model_fields:
        for wrong in ([None] * 10_000, [[None] * 10_000], [1, *[None] * 10_000], ["", *[None] * 10_000]):
            with pytest.raises((ApiError, ValidationError)) as caught:
                body.model_validate({name: wrong, "model": 0})
            assert isinstance(caught.value, ApiError) or len(caught.value.errors()) < 20, name


@pytest.mark.parametrize("name", ["logit_bias", "metadata", "chat_template_kwargs"])
def test_objects_are_bounded(name: str) -> None:
    """Before an error is made for each wrong entry."""
    with pytest.raises(ApiError, match=r"20000 .* 16384") as caught:
        ResponsesRequest.model_validate({name: {str(key): [] for key in range(20_000)}})
    assert caught.value.param == name


def test_labels_are_as_short_as_openais() -> None:
    """Labels are those of metadata, which every response repeats."""
    base: dict[str, Any] = {"model": "m", "input": "x"}
    assert ResponsesRequest.model_validate({**base, "metadata": {"k" * 64: "v" * 512}})
    for wrong in ({"k" * 65: "v"}, {"k": "v" * 513}, {str(key): "v" for key in range(17)}):
        with pytest.raises(ValidationError):
            ResponsesRequest.model_validate({**base, "metadata": wrong})


def test_a_long_name_is_not_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding the nearest known name takes a microsecond per character."""
    lengths = []
    monkeypatch.setattr("corellm.known_fields.suggestion", lambda name, _: lengths.append(len(name)) or "")
    with pytest.raises(ApiError, match="unrecognized request argument"):
        ChatRequest.model_validate({"a" * 1_000_000: 1})
    assert lengths == [100]


def test_extra_fields_are_sampling_parameters() -> None:
    """Fields beyond OpenAI's have the names that `SamplingParams` has."""
    own = {*CompletionFields.model_fields} - {"model", "stream", "stream_options", "priority", "response_format"}
    own -= {"use_beam_search", "best_of", *BeamSearchParams.__dataclass_fields__} - {"logprobs"}
    guides = {name.removeprefix("guided_") for name in own if name.startswith("guided_")}
    assert guides == {"json", "regex", "choice", "grammar"} <= {*StructuredOutputsParams.__dataclass_fields__}
    assert own - {f"guided_{name}" for name in guides} <= {*SamplingParams.__dataclass_fields__}

"""Every field of OpenAI's API is taken, ignored or refused: a new one in the `openai` package fails here."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.audio import transcription_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from corellm.sampling_params import SamplingParams
from corellm.server.errors import ApiError
from corellm.server.form import UploadedFile
from corellm.server.requests.audio import TranscriptionRequest
from corellm.server.requests.body import Body
from corellm.server.requests.chat import ChatRequest
from corellm.server.requests.completions import CompletionRequest
from corellm.server.requests.responses import ResponsesRequest
from corellm.server.requests.sampling import CompletionFields

OPENAIS = {
    ChatRequest: chat_create_params.CompletionCreateParamsBase,
    CompletionRequest: completion_create_params.CompletionCreateParamsBase,
    ResponsesRequest: response_create_params.ResponseCreateParamsBase,
    TranscriptionRequest: transcription_create_params.TranscriptionCreateParamsBase,
}


@pytest.mark.parametrize("body", OPENAIS)
def test_every_field_is_decided(body: type[Body]) -> None:
    """Exactly one of: taken, ignored, refused."""
    theirs = {*get_type_hints(OPENAIS[body]), "stream"}
    ours = [*body.model_fields, *body.IGNORED, *body.REFUSED]
    assert sorted(theirs - set(ours)) == []
    assert len(ours) == len(set(ours))
    assert sorted({*body.IGNORED} - theirs) == []  # nothing else is ignored: an unknown field is an error


@pytest.mark.parametrize("body", OPENAIS)
def test_what_is_not_taken(body: type[Body]) -> None:
    """Ignored fields may be anything; refused ones may be null or ask for nothing; others are unknown."""
    required = {"model": "m", "messages": [{}], "prompt": "x", "input": "x", "file": UploadedFile(b"")}
    base = {name: value for name, value in required.items() if name in body.model_fields}
    for name in body.IGNORED:
        body.model_validate({**base, name: object()})
    for name, (neutral, instead) in body.REFUSED.items():
        for value in (None, *neutral):
            body.model_validate({**base, name: value})
        with pytest.raises(ApiError, match=instead.partition(";")[0]) as caught:
            body.model_validate({**base, name: "something else"})
        assert caught.value.param == name
    with pytest.raises(ApiError, match="unrecognized request argument: 'temprature'; did you mean 'temperature'"):
        body.model_validate({**base, "temprature": 1})


def test_extra_fields_are_sampling_parameters() -> None:
    """Fields beyond OpenAI's have the names that `SamplingParams` has."""
    own = {*CompletionFields.model_fields} - {"model", "stream", "stream_options", "priority"}
    assert own <= {*SamplingParams.__dataclass_fields__}

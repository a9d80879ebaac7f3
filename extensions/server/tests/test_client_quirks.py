"""What client libraries send beside OpenAI's own fields, as recorded of them. `make clients` runs the libraries."""

from __future__ import annotations

from typing import Any

import pytest

from corellm.sampling_params import SamplingParams
from corellm_server.conversation import CheckedMessages, check_messages
from corellm_server.errors import ApiError
from corellm_server.limits import RequestLimits
from corellm_server.requests.audio import TranscriptionRequest
from corellm_server.requests.body import Body
from corellm_server.requests.chat import ChatRequest
from corellm_server.requests.completions import CompletionRequest
from corellm_server.requests.pooling import EmbeddingRequest, PoolingRequest
from corellm_server.requests.responses import ResponsesRequest
from corellm_server.sampling import chat_params, transcription_params

URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
TEXT = {"type": "text", "text": "What is it?"}
QUESTION = {"role": "user", "content": [IMAGE, TEXT]}
NEXT = {"role": "user", "content": "Go on"}
SERVERS_OWN = {"role": "assistant", "content": "A cat.", "refusal": None}

REPLIES: dict[str, dict[str, Any]] = {
    "openai": {**SERVERS_OWN, "annotations": None, "audio": None, "function_call": None, "tool_calls": None},
    "openai of JavaScript": {**SERVERS_OWN, "parsed": None, "tool_calls": []},
    "litellm": {
        "role": "assistant", "content": "A cat.", "tool_calls": None, "function_call": None,
        "provider_specific_fields": {"refusal": None}, "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}],
        "reasoning_content": "Hm.", "images": [], "annotations": [],
    },
    "LangChain": {"content": [{"type": "text", "text": "A cat.", "index": 0, "id": "lc_1"}], "role": "assistant"},
    "Anthropic's parts": {
        "role": "assistant", "id": "msg_1", "stop_reason": "end_turn",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "A cat."}],
    },
    "vLLM": {**SERVERS_OWN, "reasoning": "Hm.", "reasoning_content": None, "token_ids": [1, 2]},
    "lm-eval": {"role": "assistant", "content": "A cat.", "type": "text"},
    "AI SDK": {"role": "assistant", "content": [{"type": "reasoning", "text": "Hm."}, "A cat."], "parts": []},
    "responses": {
        "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "phase": None,
        "content": [{"type": "output_text", "text": "A cat.", "annotations": [], "logprobs": []}],
    },
    "a refusal": {"role": "assistant", "content": [{"type": "refusal", "refusal": "A cat."}]},
}  # fmt: skip


def checked(messages: list[Any], field: str = "messages") -> CheckedMessages:
    """Messages as the server checks those of a client."""
    return check_messages(messages, RequestLimits(), {"image": None, "audio": None}, field=field)


@pytest.mark.parametrize("client", REPLIES)
def test_row_37_a_reply_sent_back(client: str) -> None:
    """It is the assistant's text, whatever the library put beside it."""
    request = ChatRequest.model_validate({"model": "m", "messages": [QUESTION, REPLIES[client], NEXT]})
    _, reply, _ = checked(request.messages).messages
    assert [(part.modality, part.value) for part in reply["content"]] == [("text", "A cat.")]
    assert reply.keys() <= {"role", "content", "reasoning", "reasoning_content", "tool_calls"}


def test_row_37_reasoning_has_one_name() -> None:
    """For templates; where a reply has both names, each stays."""
    for given, want in (({"reasoning": "a"}, "a"), ({"reasoning": "a", "reasoning_content": "b"}, "b")):
        (message,) = checked([{"role": "assistant", "content": "x", **given}]).messages
        assert message["reasoning_content"] == want


QUESTIONS: dict[str, Any] = {
    "lm-eval": {"role": "user", "content": "What is it?", "type": "text"},
    "litellm": [{**IMAGE, "image_url": {"url": URL, "detail": "auto", "format": "image/png"}}, TEXT],
    "Anthropic's caching": [IMAGE, {**TEXT, "cache_control": {"type": "ephemeral"}}],
    "lmms-eval": [{**IMAGE, "modalities": "image"}, {**IMAGE, "modalities": "multi-images"}, TEXT],
    "responses' parts": [{"type": "input_image", "image_url": URL, "detail": "auto"}, "What is it?"],
    "files": [{"type": "file", "file": {"file_data": URL, "filename": "a.png", "format": "image/png"}}, TEXT],
    "responses' files": [{"type": "input_file", "file_data": URL, "filename": "a.png"}, TEXT],
    "plain": [{"image": URL}, {"text": "What is it?"}],
    "without types": [{"image_url": {"url": URL}}, {"text": "What is it?"}],
    "Hugging Face": [{"type": "image", "url": URL}, {"type": "text", "text": "What is it?", "image": None}],
}


@pytest.mark.parametrize("client", QUESTIONS)
def test_questions(client: str) -> None:
    """All images, and the text."""
    given = QUESTIONS[client]
    message = given if isinstance(given, dict) else {"role": "user", "content": given}
    found = checked([message])
    *_, last = found.messages[0]["content"]
    assert (last.modality, last.value) == ("text", TEXT["text"])
    assert [source.value for source in found.sources] == [URL] * (len(given) - 1 if isinstance(given, list) else 0)


BODIES: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "guidellm": (ChatRequest, {
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True, "stop": None, "max_completion_tokens": 8,
    }),
    "guidellm, of texts": (CompletionRequest, {
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "prompt": "x",
    }),
    "lm-eval": (ChatRequest, {"seed": 1234, "temperature": 0, "max_tokens": 8, "stop": []}),
    "vLLM's neutral values": (ChatRequest, {
        "length_penalty": 1.0, "use_beam_search": False, "best_of": 1, "echo": False, "include_reasoning": True,
        "add_special_tokens": False, "early_stopping": False, "logits_processors": [],
        "return_tokens_as_token_ids": False,
    }),
    "neutral as integers": (CompletionRequest, {
        "prompt": "x", "length_penalty": 1, "best_of": 1, "echo": False, "add_special_tokens": True,
    }),
    "vLLM's of responses": (ResponsesRequest, {"input": "x", "length_penalty": 1.0, "use_beam_search": False}),
    "vectors": (EmbeddingRequest, {"input": "x", "embed_dtype": "float32", "add_special_tokens": True}),
    "vectors of any task": (PoolingRequest, {"input": "x", "embed_dtype": "float32", "endianness": "little"}),
}  # fmt: skip


@pytest.mark.parametrize("client", BODIES)
def test_bodies(client: str) -> None:
    """Taken."""
    body, fields = BODIES[client]
    messages = {"messages": [QUESTION]} if body is ChatRequest else {}
    assert body.model_validate({"model": "m", **messages, **fields})


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        (ResponsesRequest, "length_penalty", 0.5), (ResponsesRequest, "best_of", 2),
        (ResponsesRequest, "best_of", True), (ChatRequest, "echo", True),
        (ResponsesRequest, "use_beam_search", True), (ResponsesRequest, "use_beam_search", 0),
        (CompletionRequest, "add_special_tokens", False),
        (EmbeddingRequest, "embed_dtype", "float16"),
    ],
)  # fmt: skip
def test_other_values_are_refused(body: type[Body], name: str, value: Any) -> None:
    """By name."""
    with pytest.raises(ApiError) as caught:
        body.model_validate({name: value, "model": "m"})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


OF_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "user", "content": "x", "foo": 1}, "foo"),
    ({"role": "user", "content": "x", "provider_specific_fields": {}}, "provider_specific_fields"),
    ({"role": "user", "content": "x", "tool_calls": []}, "tool_calls"),
    ({"role": "user", "content": [{**IMAGE, "foo": 1}]}, "content[0].foo"),
    ({"role": "user", "content": ["x", {**IMAGE, "image_url": {"url": URL, "foo": 1}}]}, "content[1].image_url.foo"),
    ({"role": "user", "content": [{"type": "file", "file": {"file_data": URL, "foo": 1}}]}, "content[0].file.foo"),
    ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}, "content[0].file.file_id"),
    ({"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}, "content[0]"),
    ({"role": "user", "content": [{"type": "image", "image": URL, "url": URL}]}, "content[0]"),
    ({"role": "user", "content": [{"type": "input_file", "file_data": "data:text/plain,x"}]}, "content[0]"),
    ({"role": "tool", "content": "x"}, "tool_call_id"),
    ({"role": "user", "content": "x", "type": "function_call"}, "type"),
    ({"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
    ({"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, "content[0].name"),
    ({"role": "assistant", "content": "x", "prefix": True}, "prefix"),
    ({"role": "assistant", "content": "x", "prefix": 1}, "prefix"),
]


@pytest.mark.parametrize(("message", "path"), OF_MESSAGES)
def test_row_9_what_is_refused_is_named(message: dict[str, Any], path: str) -> None:
    """With its whole path, in any field."""
    for field in ("messages", "input"):
        with pytest.raises(ApiError) as caught:
            checked([NEXT, message, NEXT], field)
        assert (caught.value.status, caught.value.param) == (400, f"{field}[1].{path}")


def test_sampling_that_clients_ask_for() -> None:
    """A transcription's seed, and counts of log-probabilities, which are bounded and not streamed."""
    form = {"model": "m", "file": "f", "seed": "7"}
    request = TranscriptionRequest.model_construct(**{**form, "seed": 7})
    assert transcription_params(request, SamplingParams(), RequestLimits()).seed == 7
    for fields in ({"prompt_logprobs": 21}, {"prompt_logprobs": -1}, {"prompt_logprobs": 1, "stream": True}):
        body = ChatRequest.model_validate({"model": "m", "messages": [NEXT], **fields})
        with pytest.raises(ApiError) as caught:
            chat_params(body, SamplingParams(), RequestLimits())
        assert caught.value.param == "prompt_logprobs"

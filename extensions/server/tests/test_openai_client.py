"""The official `openai` client gets what it expects: types, streams, usage and errors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from corellm import LLM, SamplingParams
from corellm_server.responses.events import encoded
from extensions.server.tests.conftest import MODEL, Running, chat, data_url, image_part, user

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def offline(tiny_llava: Path) -> Any:
    with LLM(str(tiny_llava), dtype="float32", block_size=8, max_num_seqs=16) as llm:
        yield llm


def test_chat_equals_the_offline_api(running: Running, offline: LLM) -> None:
    """An image by `data:` URL: the same text as `LLM.chat`, a response of OpenAI's type, and usage that adds up."""
    messages = user(image_part(1), {"type": "text", "text": "what is it?"})
    (want,) = offline.chat(messages, GREEDY)
    got = running.client().chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=6, extra_body={"ignore_eos": True}
    )
    ChatCompletion.model_validate(got.to_dict(), strict=True)
    assert got.choices[0].message.content == want.outputs[0].text
    assert got.choices[0].finish_reason == "length"
    assert got.usage is not None
    assert got.usage.prompt_tokens == len(want.prompt_token_ids)
    assert got.usage.completion_tokens == 6
    assert got.usage.total_tokens == got.usage.prompt_tokens + 6


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_stated_tokens(running: Running, offline: LLM, stream: bool) -> None:
    """In chat and in completions, whole and streamed: those of the offline API, by the tokens' texts."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprob_token_ids=[40, 50])
    (want,) = offline.generate("count to ten", params)
    positions = want.outputs[0].logprobs or []
    assert all({40, 50} <= {*position} for position in positions)
    texts = [{one.decoded_token for one in position.values()} for position in positions]
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 3, "stream": stream}
    body = {"ignore_eos": True, "logprob_token_ids": [40, 50]}
    made = running.client().completions.create(prompt="count to ten", logprobs=0, **fields, extra_body=body)
    tops = [top for one in (made if stream else [made]) if one.choices for top in one.choices[0].logprobs.top_logprobs]
    assert [{*top} for top in tops] == texts
    for top, position in zip(tops, positions, strict=True):
        assert top == pytest.approx({one.decoded_token: one.logprob for one in position.values()}, abs=1e-4)
    talk = running.client().chat.completions.create(messages=user("ten"), logprobs=True, **fields, extra_body=body)
    parts = [one.choices[0].logprobs for one in (talk if stream else [talk]) if one.choices]
    entries = [entry for part in parts if part is not None for entry in part.content]
    named = {offline.get_tokenizer().decode([token]) for token in (40, 50)}
    assert len(entries) == 3
    assert all(named <= {top.token for top in entry.top_logprobs} for entry in entries)
    if not stream:
        include: Any = ["message.output_text.logprobs"]
        response = running.client().responses.create(
            model=MODEL, input="ten", temperature=0, max_output_tokens=3, include=include, extra_body=body
        )
        told = response.to_dict()["output"][0]["content"][0]["logprobs"]
        assert [{top["token"] for top in one["top_logprobs"]} >= named for one in told] == [True] * 3
        with pytest.raises(openai.BadRequestError, match="logprob_token_ids needs include"):
            running.client().responses.create(model=MODEL, input="ten", extra_body=body)
    with pytest.raises(openai.BadRequestError, match="logprob_token_ids needs logprobs"):
        running.client().chat.completions.create(messages=user("ten"), **fields, extra_body=body)
    wrong = {"logprob_token_ids": [10**6]}
    with pytest.raises(openai.BadRequestError, match="is no token id of this model"):
        running.client().completions.create(prompt="ten", logprobs=0, **fields, extra_body=wrong)


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_reassembles_to_the_response(running: Running, n: int) -> None:
    """Chunks by index make the same texts, reasons and log-probabilities; the last one has the same usage."""
    request: dict[str, Any] = {
        "model": MODEL, "messages": user("count to ten"), "n": n, "seed": 5, "temperature": 1.0, "max_tokens": 9,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    completions = running.client().chat.completions
    whole = completions.create(**request)
    texts, reasons, tokens = {}, {}, {}
    chunks = list(completions.create(**request, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.logprobs is not None:
                tokens.setdefault(choice.index, []).extend(choice.logprobs.content or [])
            if choice.finish_reason is not None:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert [t.token for t in tokens[choice.index]] == [t.token for t in choice.logprobs.content or []]
        assert all(len(t.top_logprobs) == 2 for t in tokens[choice.index])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and whole.usage is not None  # noqa: PT018
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"


def test_completions_of_text_ids_and_lists(running: Running, offline: LLM) -> None:
    """Each prompt, in any form, has the completion that it has alone, in order."""
    texts = ["USER: one ASSISTANT:", "USER: two two ASSISTANT:"]
    want = [output.outputs[0].text for output in offline.generate(texts, GREEDY)]
    ids = [output.prompt_token_ids for output in offline.generate(texts, GREEDY)]
    create = running.client().completions.create
    for prompt, expected in ((texts, want), (ids, want), (texts[0], want[:1]), (ids[1], want[1:])):
        got = create(model=MODEL, prompt=prompt, temperature=0, max_tokens=6, extra_body={"ignore_eos": True})
        Completion.model_validate(got.to_dict(), strict=True)
        assert [choice.text for choice in got.choices] == expected
        assert [choice.index for choice in got.choices] == list(range(len(expected)))
    streamed = dict.fromkeys(range(2), "")
    for chunk in create(
        model=MODEL, prompt=texts, temperature=0, max_tokens=6, stream=True, extra_body={"ignore_eos": True}
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert list(streamed.values()) == want


def test_echo_scores_the_prompt(running: Running, offline: LLM) -> None:
    """`echo` with `logprobs` reports the prompt's tokens, also with `max_tokens: 0`, which generates none."""
    prompt = "USER: one ASSISTANT:"
    (want,) = offline.generate(prompt, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
    assert want.prompt_logprobs is not None
    for max_tokens in (0, 2):
        got = running.client().completions.create(
            model=MODEL, prompt=prompt, temperature=0, max_tokens=max_tokens, echo=True, logprobs=1,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        (choice,) = got.choices
        assert choice.text.startswith(prompt)
        assert (choice.text == prompt) == (max_tokens == 0)
        assert choice.logprobs is not None
        values = choice.logprobs.token_logprobs or []
        assert len(values) == len(want.prompt_token_ids) + max_tokens
        assert values[0] is None
        for value, token, position in zip(
            values[1:], want.prompt_token_ids[1:], want.prompt_logprobs[1:], strict=False
        ):
            assert position is not None
            assert value == pytest.approx(position[token].logprob, abs=1e-4)
        assert got.usage is not None
        assert got.usage.completion_tokens == max_tokens


def test_errors_are_openais(running: Running) -> None:
    """Each status raises the client's own exception, with our message."""
    client = running.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=user("x"), temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match=r"'other' .* tiny") as missing:
        client.chat.completions.create(model="other", messages=user("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="tools") as caught:
        client.chat.completions.create(
            model=MODEL, messages=user("x"), tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert (caught.value.param, caught.value.code) == ("tools", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError, match="suffix") as caught:
        client.completions.create(model=MODEL, prompt="x", suffix="y")
    assert (caught.value.param, caught.value.code) == ("suffix", "unsupported_parameter")


def test_models(running: Running) -> None:
    """The list and the single model."""
    client = running.client()
    (model,) = client.models.list().data
    assert isinstance(model, Model)
    assert (model.id, model.owned_by) == (MODEL, "corellm")
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")


def test_async_client(running: Running) -> None:
    """The asynchronous client, with several requests at once, one of them left early."""

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
            create = client.chat.completions.create
            alone = await create(**chat(user("hello")))
            outputs = await asyncio.gather(*(create(**chat(user("hello"))) for _ in range(5)))
            assert {o.choices[0].message.content for o in outputs} == {alone.choices[0].message.content}
            stream = await create(**chat(user("hello"), max_tokens=200), stream=True, extra_body={"ignore_eos": True})
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(main())


def test_an_event_is_one_line_in_any_sense() -> None:
    """Text that a model was made to write ends no event, also for clients that split lines as `str` does."""
    text = "".join(map(chr, range(0x3000))) + "data: forged"
    event = encoded({"text": text}).decode()
    assert event.splitlines() == [event[:-2], ""]
    assert json.loads(event.removeprefix("data: ")) == {"text": text}


def test_tokenize_counts_what_a_request_pays_for(running: Running) -> None:
    """Tokens of a conversation with media are those of the request's usage; text comes back from its tokens."""
    messages = user(image_part(3), {"type": "text", "text": "what is it?"})
    counted = running.post("/tokenize", {"messages": messages, "return_token_strs": True}).json()
    got = running.client().chat.completions.create(**chat(messages))
    assert got.usage is not None
    assert counted["count"] == got.usage.prompt_tokens == len(counted["tokens"]) == len(counted["token_strs"])
    text = "USER: one two"
    tokens = running.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    assert running.post("/detokenize", {"tokens": tokens}).json() == {"prompt": text}
    assert len(running.post("/tokenize", {"prompt": text}).json()["tokens"]) >= len(tokens)
    for body in ({}, {"prompt": "x", "messages": messages}):
        assert running.post("/tokenize", body).status_code == 400
    for flag in (False, True):  # far too long for the model: not tokenized, which would take minutes
        refused = running.post("/tokenize", {"prompt": "a b " * 1_000_000, "add_special_tokens": flag})
        assert refused.status_code == 400
        assert "4000000 characters" in refused.json()["error"]["message"]
    for tokens in ([-1], [10**9], [10**30]):
        refused = running.post("/detokenize", {"tokens": tokens})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens[0]")


def test_plain_parts_are_openais(running: Running) -> None:
    """`{"image": ...}`, `{"text": ...}` and plain strings make the same prompt as OpenAI's parts."""
    url, create = data_url(4), running.client().chat.completions.create
    spellings: list[list[Any]] = [
        [{"type": "image_url", "image_url": {"url": url, "detail": "high"}}, {"type": "text", "text": "what?"}],
        [{"type": "image_url", "image_url": url}, "what?"],
        [{"image": url}, {"text": "what?"}],
        [{"type": "image", "image": url, "uuid": "mine"}, {"type": "text", "text": "what?"}],
    ]
    texts = [create(**chat(user(*parts), max_tokens=8)).choices[0].message.content for parts in spellings]
    assert len(set(texts)) == 1


def test_a_completion_can_be_sent_back(running: Running) -> None:
    """A response's message, with all its null fields, is the next request's history."""
    create = running.client().chat.completions.create
    first = create(**chat(user("hello"))).choices[0].message
    messages = [
        *user("hello"),
        {**first.to_dict(), "annotations": None, "audio": None, "tool_calls": None},
        *user("go on"),
    ]
    assert create(**chat(messages)).choices[0].message.content is not None


def test_row_37_a_reply_that_a_library_changed(running: Running) -> None:
    """As litellm sends it back; an unknown field of a user's message is named in full."""
    create = running.client().chat.completions.create
    first = create(**chat(user("hello"))).choices[0].message.to_dict()
    messages = [*user("hello"), first, *user("go on")]
    want = create(**chat(messages)).choices[0].message.content
    changed: dict[str, Any] = {**first, "provider_specific_fields": {"refusal": None}, "id": "m", "type": "text"}
    assert create(**chat([*user("hello"), changed, *user("go on")])).choices[0].message.content == want
    with pytest.raises(openai.BadRequestError) as caught:
        create(**chat([*messages, *user({"type": "image_url", "image_url": {"url": data_url(1), "foo": 1}})]))
    assert caught.value.param == "messages[3].content[0].image_url.foo"


def test_a_prefix_is_continued(running: Running, offline: LLM) -> None:
    """As `continue_final_message` does it, here and in Python."""
    begun: list[dict[str, Any]] = [*user("hello"), {"role": "assistant", "content": "There are"}]
    begun_so = [begun[0], {**begun[1], "prefix": True}]
    (want,) = offline.chat(begun, GREEDY, continue_final_message=True)
    (got,) = offline.chat(begun_so, GREEDY)
    assert (got.prompt, got.outputs[0].text) == (want.prompt, want.outputs[0].text)
    create = running.client().chat.completions.create
    served = create(**chat(begun_so), extra_body={"ignore_eos": True})
    assert served.choices[0].message.content == want.outputs[0].text
    with pytest.raises(openai.BadRequestError) as caught:
        create(**chat(begun_so), extra_body={"add_generation_prompt": True})
    assert caught.value.param == "continue_final_message"


def test_usage_in_every_event(running: Running) -> None:
    """With `continuous_usage_stats`: the tokens so far, of which the last event has all."""
    asked = chat(user("hello"), stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    # events of a slow reader are joined, but never those of two choices
    prompt = {"model": MODEL, "prompt": "one", "n": 2, "max_tokens": 6, "stream": True}
    client = running.client()
    for stream in (
        client.chat.completions.create(**asked),
        client.completions.create(**prompt, stream_options=asked["stream_options"]),
    ):
        *chunks, last = list(stream)
        assert (last.choices, [chunk.choices for chunk in chunks if not chunk.choices]) == ([], [])
        counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
        assert len(counts) == len(chunks) > 1
        assert counts == sorted(counts)
        assert last.usage is not None
        assert counts[-1] == last.usage.completion_tokens > 0
        assert {chunk.usage.prompt_tokens for chunk in chunks} == {last.usage.prompt_tokens}
    only = client.chat.completions.create(**{**asked, "stream_options": {"continuous_usage_stats": True}})
    assert all(chunk.choices and chunk.usage is not None for chunk in only)


def test_token_ids_and_log_probabilities_of_the_prompt(running: Running, offline: LLM) -> None:
    """They are those of `LLM.chat`, and come only if asked for; items' tokens are counted apart."""
    messages = user(image_part(1), {"type": "text", "text": "what is it?"})
    (want,) = offline.chat(messages, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=1))
    assert want.prompt_logprobs is not None
    more = {"ignore_eos": True, "return_token_ids": True}
    got = running.post("/v1/chat/completions", {**chat(messages), **more, "prompt_logprobs": 1}).json()
    assert got["prompt_token_ids"] == want.prompt_token_ids
    assert got["choices"][0]["token_ids"] == want.outputs[0].token_ids
    assert got["prompt_logprobs"][0] is None
    for position, expected in zip(got["prompt_logprobs"][1:], want.prompt_logprobs[1:], strict=True):
        assert expected is not None
        assert position.keys() == {str(token) for token in expected}
        for token, one in expected.items():
            assert position[str(token)]["logprob"] == pytest.approx(one.logprob, abs=1e-4)
            assert position[str(token)]["rank"] == one.rank
    (place,) = want.multi_modal_placeholders["image"]
    assert got["usage"]["prompt_tokens_details"]["image_tokens"] == place.length
    chunks = list(running.client().chat.completions.create(**chat(messages), stream=True, extra_body=more))
    assert chunks[0].to_dict()["prompt_token_ids"] == want.prompt_token_ids
    ids = [token for chunk in chunks for token in chunk.choices[0].to_dict().get("token_ids", [])]  # type: ignore[attr-defined]
    assert ids == want.outputs[0].token_ids
    plain = running.post("/v1/chat/completions", chat(user("hello"))).json()
    assert not plain.keys() & {"prompt_token_ids", "prompt_logprobs"}
    assert plain["usage"]["prompt_tokens_details"].keys() == {"cached_tokens"}

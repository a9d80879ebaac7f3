"""Beam search over HTTP is the offline one's, in completions and in chat; what it cannot follow is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import openai
import pytest

from corellm import LLM, SamplingParams
from corellm.errors import AbsentMethodError
from corellm.serving import AsyncLLM
from corellm_server.beams import beam_fields
from corellm_server.errors import ApiError
from corellm_server.limits import RequestLimits
from corellm_server.requests.completions import CompletionRequest
from extensions.server.tests.conftest import MODEL, Running, image_part, user
from tests.fixtures import random_image

PARAMS: dict[str, Any] = {"beam_width": 4, "max_tokens": 5, "length_penalty": 0.5, "ignore_eos": True}
BODY = {"use_beam_search": True, "length_penalty": 0.5, "ignore_eos": True, "best_of": 4}


@pytest.fixture(scope="module")
def offline(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llava), dtype="float32", block_size=8, max_num_seqs=16) as llm:
        yield llm


def test_completions(running: Running, offline: LLM) -> None:
    """The best `n` of `best_of`, for each of several prompts, with log-probabilities."""
    prompts = ["count to ten", "left or right?"]
    made = running.client().completions.create(
        model=MODEL, prompt=prompts, max_tokens=5, n=2, logprobs=2, extra_body=BODY
    )
    want = [one for output in offline.beam_search(prompts, {**PARAMS, "logprobs": 2}) for one in output.outputs[:2]]
    assert [choice.text for choice in made.choices] == [one.text for one in want]
    assert len({choice.text for choice in made.choices}) > 2
    for choice, one in zip(made.choices, want, strict=True):
        assert sum(choice.logprobs.token_logprobs) == pytest.approx(one.cumulative_logprob, abs=1e-3)
        assert {len(top) for top in choice.logprobs.top_logprobs} <= {1, 2}  # by text, which two tokens may share
    assert made.usage is not None
    assert made.usage.completion_tokens == 20


def test_chat(running: Running, offline: LLM) -> None:
    """Of a conversation with an image; without `best_of` there are `n` beams."""
    talk = user(image_part(1), {"type": "text", "text": "what is it?"})
    body = {**BODY, "best_of": None, "early_stopping": "never"}
    made = running.client().chat.completions.create(model=MODEL, messages=talk, max_tokens=5, n=3, extra_body=body)
    given = [{"role": "user", "content": [{"type": "image", "image": random_image(40, 30, 1)}, talk[0]["content"][1]]}]
    (want,) = offline.beam_search(given, {**PARAMS, "beam_width": 3, "early_stopping": "never"})
    assert [choice.message.content for choice in made.choices] == [one.text for one in want.outputs]
    assert [choice.finish_reason for choice in made.choices] == ["length"] * 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"use_beam_search": True, "stream": True}, "stream"), ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "top_p": 0.5}, "top_p"), ({"use_beam_search": True, "prompt_logprobs": 0},
        "prompt_logprobs"), ({"use_beam_search": True, "best_of": 2, "n": 3}, "best_of"),
        ({"use_beam_search": True, "best_of": 10**6}, "best_of"), ({"length_penalty": 0.5}, "length_penalty"),
        ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping"), ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True, "response_format": {"type": "json_object"}}, "use_beam_search"),
        ({"use_beam_search": True, "length_penalty": 1e9}, "length_penalty"), ({"early_stopping": True},
        "early_stopping"), ({"use_beam_search": True, "temperature": 0.5}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_refused(running: Running, fields: dict[str, Any], param: str) -> None:
    """With the field at fault."""
    body = {"model": MODEL, "messages": user("ten"), "max_tokens": 2, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        running.client().chat.completions.create(model=MODEL, messages=user("ten"), max_tokens=2, extra_body=body)
    assert caught.value.param == param


def test_more_beams_than_tokens_are_reported_for() -> None:
    """However many outputs the operator allows: more beams would take the whole vocabulary of each."""
    limits, params = RequestLimits(max_n=128), SamplingParams(n=1)
    for width, taken in ((50, True), (51, False)):
        request = CompletionRequest(model="m", prompt="x", use_beam_search=True, best_of=width)
        with nullcontext() if taken else pytest.raises(ApiError, match=r"best_of must be in \[n, 50\]"):
            assert (beam_fields(request, params, limits) or {})["beam_width"] == width


def test_without_the_extension(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told what is missing."""

    def absent(llm: AsyncLLM) -> Any:
        raise AbsentMethodError("it comes with corellm-decoding")

    monkeypatch.setattr(AsyncLLM, "beam_search", property(absent))
    with pytest.raises(openai.BadRequestError, match="corellm-decoding"):
        running.client().completions.create(model=MODEL, prompt="x", extra_body={"use_beam_search": True})

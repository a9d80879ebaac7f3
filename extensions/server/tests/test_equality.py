"""The server adds HTTP and a process boundary, and nothing else: outputs are the offline API's, all at once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from corellm import LLM, RequestOutput, SamplingParams
from corellm.engine.process.client import ProcessLLM
from extensions.media.tests import test_audio
from extensions.media.tests.videos import encode, plain
from extensions.server.tests.conftest import MODEL, image_part, serving, user

ENGINE: dict[str, Any] = {"dtype": "float32", "block_size": 8, "max_num_seqs": 16, "max_num_batched_tokens": 256}
EXTRA: list[dict[str, Any]] = [
    {}, {"frequency_penalty": 0.5}, {"stop": ["e"]}, {"logit_bias": {"30": 2.0}}, {"n": 2}, {"presence_penalty": 1.5},
]  # fmt: skip


@dataclass
class Request:
    """A conversation, or a prompt, and how to choose tokens."""

    given: Any
    params: dict[str, Any]

    @property
    def is_chat(self) -> bool:
        """Whether it goes to `/v1/chat/completions`."""
        return not isinstance(self.given, str)


def video_part(seed: int) -> dict[str, Any]:
    """A video of six frames."""
    data = base64.b64encode(encode([plain(seed * 7 + number) for number in range(6)], rate=4)).decode()
    return {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + data}}


def audio_part(seed: int) -> dict[str, Any]:
    """Audio of one of five formats."""
    name = sorted(test_audio.FILES)[seed % 5]
    data = base64.b64encode(test_audio.FILES[name]).decode()
    form = {"WAV": "wav", "FLAC": "flac", "MP3": "mp3"}.get(name, "ogg")
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def media(kind: str, number: int) -> list[dict[str, Any]]:
    """No item, one or several, of what a model takes."""
    if kind == "audio":
        return [audio_part(number + item) for item in range(number % 3)]
    images = [image_part(seed) for seed in range(number % 3)]
    return [*images, *([video_part(number % 2)] if number % 5 == 0 else [])]


def requests(kind: str, count: int) -> list[Request]:
    """Every fourth is a prompt, the others are conversations with none to three items."""
    made = []
    for number in range(count):
        params = {"max_tokens": 4 + number % 9, **EXTRA[number % len(EXTRA)]}
        text = f"question {number}: " + "why " * (number % 17)
        question = {"type": "text", "text": text}
        made.append(Request(text if number % 4 == 3 else user(*media(kind, number), question), params))
    return made


def offline(llm: LLM, made: list[Request]) -> list[RequestOutput]:
    """What `LLM` gives for each."""
    outputs: dict[int, RequestOutput] = {}
    for is_chat, complete in ((True, llm.chat), (False, llm.generate)):
        own = [number for number, request in enumerate(made) if request.is_chat == is_chat]
        params = [SamplingParams(temperature=0, ignore_eos=True, logprobs=0, **made[number].params) for number in own]
        outputs |= zip(own, complete([made[number].given for number in own], params, use_tqdm=False), strict=True)
    return [outputs[number] for number in range(len(made))]


def shown(token: str | None) -> str:
    """A token's text without broken characters: a stream cannot tell yet whether a byte becomes one."""
    return (token or "").replace("\ufffd", "")


def wanted(output: RequestOutput) -> tuple[Any, ...]:
    """Texts, reasons and tokens of all completions, and the numbers of tokens."""
    completions = {
        one.index: (
            one.text, one.finish_reason,
            [shown(step[token].decoded_token) for step, token in zip(one.logprobs or (), one.token_ids, strict=True)],
        )
        for one in output.outputs
    }  # fmt: skip
    return completions, len(output.prompt_token_ids), sum(len(one.token_ids) for one in output.outputs)


async def ask(client: openai.AsyncOpenAI, request: Request, *, stream: bool) -> tuple[Any, ...]:
    """The same of the server, through OpenAI's client."""
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "extra_body": {"ignore_eos": True}, **request.params}
    if request.is_chat:
        fields |= {"messages": request.given, "logprobs": True}
    else:
        fields |= {"prompt": request.given, "logprobs": 0}
    create: Any = client.chat.completions.create if request.is_chat else client.completions.create
    if stream:
        parts = [part async for part in await create(**fields, stream=True, stream_options={"include_usage": True})]
    else:
        parts = [await create(**fields)]
    made: dict[int, tuple[Any, ...]] = {}
    for choice in (choice for part in parts for choice in part.choices):
        text, reason, tokens = made.get(choice.index, ("", None, []))
        if request.is_chat:
            text += (choice.delta if stream else choice.message).content or ""
            tokens = tokens + [shown(one.token) for one in choice.logprobs.content] if choice.logprobs else tokens
        else:
            text += choice.text
            tokens = tokens + [shown(one) for one in choice.logprobs.tokens] if choice.logprobs else tokens
        made[choice.index] = text, choice.finish_reason or reason, tokens
    usage = parts[-1].usage
    return made, usage.prompt_tokens, usage.completion_tokens


@pytest.mark.parametrize(("kind", "count"), [("images and videos", 64), ("audio", 16)])
def test_mixed_requests_equal_offline_greedy_tokens(kind: str, count: int, tmp_path: Path) -> None:
    """Half of them streamed, all at once, through HTTP and the engine's process: texts, reasons and tokens of each."""
    module = "corellm_qwen_audio.tiny" if kind == "audio" else "corellm_qwen_vl.tiny"
    model = str(importlib.import_module(module).make_tiny_checkpoint(tmp_path))
    made = requests(kind, count)
    with LLM(model, **ENGINE) as llm:
        want = [wanted(output) for output in offline(llm, made)]

    async def ask_all(url: str) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0, timeout=600) as client:
            asking = (ask(client, request, stream=number % 2 == 0) for number, request in enumerate(made))
            return await asyncio.gather(*asking)

    with contextlib.closing(ProcessLLM(model, **ENGINE)) as process, serving(process) as running:
        got = asyncio.run(ask_all(running.url))
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        assert one == other, (number, made[number].params)
    assert len({completions[0][0] for completions, *_ in want}) > count // 2

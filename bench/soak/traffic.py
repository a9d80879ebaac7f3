"""Random requests of all kinds: plain, with media, forms and tools, broken, hostile, left by their clients.

Knows no results.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from PIL import Image

from bench.soak.connection import PATIENT, Manner
from bench.soak.tally import Outcome
from extensions.media.tests import test_audio, videos
from extensions.server.tests.conftest import MODEL, chat, data_url, user
from tests.media import test_image
from tests.media.test_image_cost import jpeg_of_scans

CHAT, COMPLETE, TOKENIZE, MESSAGES = "/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/messages"


@dataclass(frozen=True)
class Planned:
    """A request, how its client behaves, and what may become of it."""

    kind: str
    path: str
    body: bytes
    manner: Manner = PATIENT
    expected: tuple[Outcome, ...] = ("completed",)


def plan(rng: Random) -> Planned:
    """A random request."""
    kinds, weights = zip(*KINDS.items(), strict=True)
    planned: Planned = rng.choices(kinds, weights)[0](rng)
    return planned


def text(rng: Random) -> Planned:
    return Planned("chat", CHAT, encoded(_chat(rng, words(rng))))


def stream(rng: Random) -> Planned:
    return Planned("stream", CHAT, encoded({**_chat(rng, words(rng)), "stream": True}))


def completion(rng: Random) -> Planned:
    prompts = [words(rng) for _ in range(rng.randint(1, 3))]
    body = {"model": MODEL, "prompt": prompts, "max_tokens": rng.randint(1, 40), "n": rng.randint(1, 2)}
    return Planned("completions", COMPLETE, encoded({**body, "stream": rng.random() < 0.5, "logprobs": 2}))


def tokens(rng: Random) -> Planned:
    return Planned("tokenize", TOKENIZE, encoded({"messages": user(image(rng), words(rng))}))


def with_image(rng: Random) -> Planned:
    parts = [image(rng) for _ in range(rng.randint(1, 3))]
    return Planned("images", CHAT, encoded({**_chat(rng, *parts, words(rng)), "stream": rng.random() < 0.5}))


def with_video(rng: Random) -> Planned:
    part = {"type": "video_url", "video_url": {"url": url("video/mp4", video(rng.randint(0, 3)))}}
    return Planned("videos", CHAT, encoded(_chat(rng, part, words(rng))), expected=("completed", "refused"))


def with_audio(rng: Random) -> Planned:
    name = rng.choice(sorted(test_audio.FILES))
    part = {"type": "input_audio", "input_audio": {"data": _base64(test_audio.FILES[name]), "format": "wav"}}
    return Planned("audio", CHAT, encoded(_chat(rng, part, words(rng))), expected=("completed", "refused"))


def with_form(rng: Random) -> Planned:
    """An output of a given form, new or seen before."""
    sides = {"type": "integer", "minimum": 0, "maximum": rng.randint(0, 99)}
    schema = {"type": "object", "properties": {"sides": sides}, "required": ["sides"], "additionalProperties": False}
    form: dict[str, Any] = rng.choice([
        {"response_format": {"type": "json_schema", "json_schema": {"name": "shape", "schema": schema}}},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": f"[a-c]{{1,{rng.randint(1, 30)}}}"}},
        {"structured_outputs": {"choice": words(rng).split()}}, {"guided_grammar": 'root ::= "(" root ")" | [0-9]'},
    ])  # fmt: skip
    return Planned("forms", CHAT, encoded({**_chat(rng, words(rng)), **form, "stream": rng.random() < 0.5}))


def with_tools(rng: Random) -> Planned:
    """A call that is demanded, in OpenAI's API or Anthropic's, perhaps after one whose result is an image."""
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    messages = user(words(rng))
    if rng.random() < 0.3:
        tools = [{"name": "paint", "input_schema": schema}]
        asked = {**_chat(rng), "messages": messages, "tools": tools, "tool_choice": {"type": "any"}}
        return Planned("tools", MESSAGES, encoded(asked))
    if rng.random() < 0.5:
        call = {"id": "call00001", "type": "function", "function": {"name": "paint", "arguments": '{"colour": "red"}'}}
        result = {"role": "tool", "tool_call_id": "call00001", "content": [image(rng)]}
        messages += [{"role": "assistant", "tool_calls": [call]}, result]
    tools = [{"type": "function", "function": {"name": "paint", "parameters": schema}}]
    choice = {"tool_choice": "required", "stream": rng.random() < 0.5}
    asked = {**_chat(rng), "messages": messages, "tools": tools, **choice}
    return Planned("tools", CHAT, encoded(asked))


def bad_form(rng: Random) -> Planned:
    """A form that cannot be held to, now and then one that explodes."""
    form: dict[str, Any] = rng.choice([
        {"json": {"not": {"maximum": rng.random()}}}, {"json": {"$ref": "https://example.org"}}, {"regex": "(?=a)b"},
        {"regex": "(" * rng.randint(1, 500)}, {"grammar": "start: absent"}, {"choice": []},
        {"json": {"type": "strin"}}, {"json": {"type": "array", "uniqueItems": True}, "regex": "a"},
    ])  # fmt: skip
    if rng.random() < 0.02:
        form = {"json": {"type": "integer", "multipleOf": 900_001 + rng.randint(0, 99_999)}}
    asked = {**_chat(rng, "x"), "structured_outputs": form, "stream": rng.random() < 0.5}
    return Planned("bad forms", CHAT, encoded(asked), expected=("refused",))


def bad(rng: Random) -> Planned:
    path, body = rng.choice([
        (CHAT, b"{"), (CHAT, b"[" * 5000), (COMPLETE, b"null"), (CHAT, b'{"temperature": NaN}'), ("/v1/nothing", b"{}"),
        (CHAT, encoded(chat(user("x"), temperature=9))), (CHAT, encoded(chat(user("x"), max_tokens=10**9))),
        (CHAT, encoded(chat(user("x"), nonsense=1))), (CHAT, encoded(chat([]))), (COMPLETE, encoded({"prompt": [-1]})),
        (CHAT, encoded({**chat(user("x")), "model": "another"})), (CHAT, encoded(chat(user("word " * 20_000)))),
        (CHAT, encoded(chat(user({"type": "image_url", "image_url": "http://169.254.169.254/"})))),
        (CHAT, encoded(chat(user({"image": "/etc/passwd"})))), ("/detokenize", encoded({"tokens": [10**30]})),
    ])  # fmt: skip
    return Planned("bad", path, body, expected=("refused",))


def hostile(rng: Random) -> Planned:
    """Media that are damaged, or larger than they look; a changed byte may leave a valid file."""
    if rng.random() < 0.005:
        data = scans()
    elif rng.random() < 0.3:
        data = rng.choice(sorted(test_image.BOMBS.values()))
    else:
        files = [*test_image.FILES.values(), video(0)]
        damaged = bytearray(rng.choice(files))
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        data = bytes(damaged[: rng.randint(1, len(damaged))] if rng.random() < 0.3 else damaged)
    modality = rng.choice(["image", "video"])
    part = {"type": f"{modality}_url", f"{modality}_url": {"url": url(f"{modality}/x", data)}}
    return Planned("hostile", CHAT, encoded(_chat(rng, part)), expected=("completed", "refused"))


def aborted(rng: Random) -> Planned:
    """A stream whose client leaves in the middle, or not if it is short."""
    body = {**_chat(rng, image(rng), words(rng)), "stream": True, "max_tokens": 200, "ignore_eos": True}
    return Planned("aborts", CHAT, encoded(body), Manner(reads=rng.randint(1, 20_000)), ("aborted", "completed"))


def disconnected(rng: Random) -> Planned:
    """A client that leaves while it sends, waits, or gets its first tokens."""
    manner = Manner(leaves_after=rng.random() ** 3, sends=rng.choice([0.0, rng.random(), 1.0, 1.0]))
    body = {**_chat(rng, image(rng), words(rng)), "stream": rng.random() < 0.5, "max_tokens": 200}
    return Planned("disconnects", CHAT, encoded(body), manner, ("aborted",))


def slow(rng: Random) -> Planned:
    body = {**_chat(rng, words(rng)), "stream": True, "max_tokens": 100, "logprobs": True, "top_logprobs": 5}
    return Planned("slow readers", CHAT, encoded(body), Manner(pause=rng.random() * 0.02))


KINDS: dict[Callable[[Random], Planned], int] = {
    text: 6, stream: 6, completion: 4, tokens: 2, with_image: 6, with_video: 2, with_audio: 1, bad: 6, hostile: 6,
    aborted: 4, disconnected: 6, slow: 1, with_form: 6, with_tools: 4, bad_form: 3,
}  # fmt: skip
"""Every kind, and how often it comes."""


def canaries() -> list[Planned]:
    """Requests whose output is known: a text, an image, both streamed and whole."""
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": data_url(7)}}, "what is this?"]
    bodies = [chat(user(*content), max_tokens=16, ignore_eos=True) for content in (["how are you?"], parts)]
    return [Planned("canary", CHAT, encoded({**body, "stream": s})) for body in bodies for s in (False, True)]


def encoded(body: dict[str, Any]) -> bytes:
    """A body as bytes."""
    return json.dumps(body).encode()


def words(rng: Random) -> str:
    """A text of a few words; some texts come again."""
    return " ".join(rng.choices(["how", "many", "stars", "are", "in", "the", "image", "?"], k=rng.randint(1, 60)))


def image(rng: Random) -> dict[str, Any]:
    """An image's part; some come again."""
    seed = rng.randint(0, 60)
    return {"type": "image_url", "image_url": {"url": data_url(seed, 30 + seed, 90 - seed)}}


@cache
def video(number: int) -> bytes:
    """A video of a few frames."""
    return bytes(videos.encode([videos.plain(number * 10 + index) for index in range(4 + number)]))


@cache
def scans() -> bytes:
    """An image that keeps a decoder busy until its time is up."""
    return jpeg_of_scans(4000, Image.new("L", (1000, 1000)))


def url(kind: str, data: bytes) -> str:
    """A `data:` URL."""
    return f"data:{kind};base64,{_base64(data)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _chat(rng: Random, *content: Any) -> dict[str, Any]:
    sampling = {"temperature": rng.choice([0, 0.7, 1.5]), "seed": rng.randint(0, 99), "max_tokens": rng.randint(1, 60)}
    return {**chat(user(*content)), **sampling}

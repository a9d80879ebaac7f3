"""The calls for models that pool: truncation, pairs, mixed tasks at once, asyncio, and one clear error per mistake."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corellm import LLM, AsyncLLM, LLMEngine, PoolingParams, SamplingParams
from corellm.config import EngineConfig
from corellm.errors import (
    ConfigError,
    CorellmError,
    InvalidParameterError,
    PromptError,
    PromptTooLongError,
    RequestError,
    RequestFailedError,
)
from corellm_pooling.inputs import PooledPrompt
from corellm_pooling.scoring import cosine
from corellm_pooling.truncation import truncated_right
from tests.fixtures import random_image

SMALL: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_kv_blocks": 64}
IMAGE_PROMPT = "USER: <image>\nWhat shape? ASSISTANT:"


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(tiny_llava, runner="pooling", **SMALL) as loaded:
        yield loaded


def ask(image: Any) -> dict[str, Any]:
    return {"prompt": IMAGE_PROMPT, "multi_modal_data": {"image": image}}


def embedding(llm: LLM, prompt: Any, **options: Any) -> np.ndarray[Any, Any]:
    (output,) = llm.embed(prompt, use_tqdm=False, **options)
    assert output.outputs is not None
    return np.array(output.outputs.embedding, dtype=np.float32)


def test_a_cosine_is_at_most_one() -> None:
    """Also where rounding makes the quotient larger."""
    vectors = np.random.default_rng(0).standard_normal((200, 64)).astype(np.float32)
    assert any(float(v @ v) / float(np.linalg.norm(v) * np.linalg.norm(v)) > 1 for v in vectors)
    assert all(0.999999 < cosine(v, v) <= 1 and -1 <= cosine(v, -v) < -0.999999 for v in vectors)
    assert cosine(vectors[0], np.zeros(64, np.float32)) == 0


def test_scores_of_embeddings(llm: LLM) -> None:
    """Pairs 1:1, 1:N and N:N are compared by cosine, or by all tokens (MaxSim); an image is a document as text is."""
    texts = ["a red circle", "one two three", "yes"]
    image = ask(random_image(40, 40, 1))
    vectors = {i: embedding(llm, prompt) for i, prompt in enumerate([*texts, image])}

    def scores(queries: Any, documents: Any, **options: Any) -> list[float]:
        outputs = llm.score(queries, documents, use_tqdm=False, **options)
        return [output.outputs.score for output in outputs if output.outputs is not None]

    assert scores(texts[0], image) == pytest.approx([vectors[0] @ vectors[3]], abs=1e-5)
    assert scores(texts[0], [*texts, image]) == pytest.approx([vectors[0] @ vectors[i] for i in range(4)], abs=1e-5)
    assert scores(texts, texts[::-1]) == pytest.approx([vectors[i] @ vectors[2 - i] for i in range(3)], abs=1e-5)
    tokens = [
        output.outputs.data
        for output in llm.encode([texts[0], image], pooling_task="token_embed", use_tqdm=False)
        if output.outputs is not None
    ]
    wanted = sum(max(float(q @ d) for d in tokens[1]) for q in tokens[0])
    assert scores(texts[0], image, late_interaction=True) == pytest.approx([wanted], abs=1e-4)


def test_conversations(llm: LLM) -> None:
    """One or a list of them, without the start of the assistant's turn; also as documents that are embedded apart."""
    messages = [{"role": "user", "content": [{"type": "image", "image": random_image(40, 40, 1)}, "What shape?"]}]
    processed = llm.engine.input_processor.process_chat(messages, add_generation_prompt=False)
    wanted = embedding(llm, processed)
    np.testing.assert_array_equal(embedding(llm, messages), wanted)
    text, several = llm.embed(["yes", messages], use_tqdm=False)
    assert several.prompt_token_ids == processed.token_ids
    (score,) = llm.score("yes", [messages], use_tqdm=False)
    assert text.outputs is not None
    assert score.outputs is not None
    assert score.outputs.score == pytest.approx(wanted @ np.array(text.outputs.embedding), abs=1e-5)


def test_tasks_of_one_batch(llm: LLM) -> None:
    """An engine's requests may have all tasks, dimensions and items at once; each gets what it gets alone."""
    engine = llm.engine
    wanted = embedding(llm, "A red circle"), embedding(llm, "A red circle", dimensions=8)
    for name, params in (
        ("one", PoolingParams(task="embed")),
        ("short", PoolingParams(task="embed", dimensions=8)),
        ("tokens", PoolingParams(task="token_embed")),
    ):
        engine.add_request(name, "A red circle", params)  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        found |= {output.request_id: output.outputs.data for output in engine.step()}  # type: ignore[attr-defined]
    np.testing.assert_allclose(found["one"], wanted[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["short"], wanted[1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["tokens"][-1], wanted[0], rtol=0, atol=1e-5)


def test_a_prefix_from_the_cache(llm: LLM) -> None:
    """The second time an embedding's prompt comes from the cache but for its end; one of all tokens never does."""
    text = "The quick brown fox jumps over the lazy dog 0123456789"
    assert llm.engine.reset_prefix_cache()
    (first,), (second,) = llm.embed(text, use_tqdm=False), llm.embed(text, use_tqdm=False)
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens >= 16
    (tokens,) = llm.encode(text, pooling_task="token_embed", use_tqdm=False)
    assert tokens.num_cached_tokens == 0
    assert tokens.outputs is not None
    assert first.outputs is not None
    assert second.outputs is not None
    np.testing.assert_allclose(second.outputs.embedding, first.outputs.embedding, rtol=0, atol=1e-5)
    np.testing.assert_allclose(tokens.outputs.data[-1], first.outputs.embedding, rtol=0, atol=1e-5)


def test_truncation_keeps_the_beginning(llm: LLM) -> None:
    """A prompt is cut at its end: to a number of tokens, or to what fits; items after the cut are left out."""
    tokens = llm.get_tokenizer()("A red circle is above a blue square")["input_ids"]
    (output,) = llm.embed("A red circle is above a blue square", truncate_prompt_tokens=5, use_tqdm=False)
    assert output.prompt_token_ids == tokens[:5]
    (output,) = llm.embed([[5] * 100], truncate_prompt_tokens=-1, use_tqdm=False)
    assert output.prompt_token_ids == [5] * 64
    image = random_image(40, 40, 1)
    (whole,) = llm.embed(ask(image), use_tqdm=False)
    start = whole.prompt_token_ids.index(llm.get_tokenizer().convert_tokens_to_ids("<image>"))
    (before,) = llm.embed(ask(image), truncate_prompt_tokens=start, use_tqdm=False)
    assert before.prompt_token_ids == whole.prompt_token_ids[:start]
    (after,) = llm.embed(ask(image), truncate_prompt_tokens=start + 16, use_tqdm=False)
    assert after.prompt_token_ids == whole.prompt_token_ids[: start + 16]
    with pytest.raises(InvalidParameterError, match=f" {start + 16} tokens, .* {start}"):
        llm.embed(ask(image), truncate_prompt_tokens=start + 3, use_tqdm=False)


@pytest.mark.parametrize(("kept", "wanted"), [(9, [1, 5, 6, 7, 8, 2]), (4, [1, 5, 6, 2]), (2, [1, 2]), (1, [1])])
def test_truncation_keeps_special_tokens_at_the_end(kept: int, wanted: list[int]) -> None:
    """Models that pool the last token were trained on the one the tokenizer ends with."""
    prompt = PooledPrompt("a", [1, 5, 6, 7, 8, 2])
    assert truncated_right(prompt, kept, 99, [2]).token_ids == wanted
    assert truncated_right(prompt, kept, 99, [3]).token_ids == [1, 5, 6, 7, 8, 2][:kept]


def test_a_prompt_as_long_as_the_model(llm: LLM) -> None:
    """A prompt needs no room for a token to generate: `max_model_len` tokens fit, one more is refused."""
    assert embedding(llm, [5] * 64).shape == (64,)
    with pytest.raises(PromptTooLongError, match=r"65 tokens, .* max_model_len=64"):
        llm.embed([5] * 65, use_tqdm=False)


MISTAKES: dict[str, tuple[Any, type[CorellmError], str]] = {
    "generate": (lambda llm: llm.generate("a"), InvalidParameterError, "has no task 'generate'.*runner='generate'"),
    "chat": (lambda llm: llm.chat([{"role": "user", "content": "a"}]), InvalidParameterError, "no task 'generate'"),
    "classify": (lambda llm: llm.classify("a"), InvalidParameterError, "convert='classify'"),
    "reward": (lambda llm: llm.reward("a"), InvalidParameterError, "reward model"),
    "an unknown task": (lambda llm: llm.encode("a", pooling_task="plot"), InvalidParameterError, "task must"),
    "dimensions": (lambda llm: llm.embed("a", dimensions=65), InvalidParameterError, "embeddings have 64"),
    "types of tokens": (
        lambda llm: llm.engine.add_request("x", [5, 6], PoolingParams(task="embed", token_type_ids=[0])),
        InvalidParameterError,
        "token_type_ids has 1 types, and the prompt 2 tokens",
    ),
    "a prompt without tokens": (lambda llm: llm.embed([[]]), PromptError, "prompt is empty"),
    "no query": (lambda llm: llm.score([], "a"), InvalidParameterError, "one query"),
    "no document": (lambda llm: llm.score("a", []), InvalidParameterError, "one document"),
    "uneven pairs": (lambda llm: llm.score(["a", "b"], ["c"] * 4), InvalidParameterError, "2 queries for 4 documents"),
    "activation of cosines": (
        lambda llm: llm.score("a", "b", use_activation=False),
        InvalidParameterError,
        "use_activation",
    ),
    "a cut item": (
        lambda llm: llm.embed(ask(random_image(9, 9, 1)), truncate_prompt_tokens=9),
        InvalidParameterError,
        "would cut image 0",
    ),
    "sampling parameters": (
        lambda llm: llm.engine.add_request("x", "a", SamplingParams()),
        InvalidParameterError,
        "no task 'generate'",
    ),
    "NaN in given embeddings": (
        lambda llm: llm.embed(ask(torch.full((1, 16, 64), float("nan")))),
        RequestError,
        "finite",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(llm: LLM, mistake: str) -> None:
    """One clear error each, and the model goes on."""
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        call(llm)
    assert not llm.engine.has_unfinished_requests()


def test_an_empty_list(llm: LLM) -> None:
    """No prompt gives no output, as for `generate`."""
    assert llm.embed([], use_tqdm=False) == []


def test_one_wrong_prompt_of_several(llm: LLM) -> None:
    """The others are finished; with `on_error="return"` the wrong one's output has its error."""
    good, bad, last = llm.embed(["a", [5] * 99, "b"], on_error="return", use_tqdm=False)
    assert good.outputs is not None
    assert last.outputs is not None
    assert bad.outputs is None
    assert isinstance(bad.error, PromptTooLongError)


def test_a_result_that_is_not_finite(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooled NaN fails its request alone, and is not returned as an embedding."""
    forward = llm.engine.runner.forward
    steps = itertools.count()

    def broken(*args: Any) -> torch.Tensor:
        hidden = forward(*args).clone()
        if next(steps) == 0:  # the second request may be prepared too late for this step
            hidden[0] = float("nan")
        return hidden

    monkeypatch.setattr(llm.engine.runner, "forward", broken)
    outputs = llm.encode(["a", "b"], pooling_task="token_embed", on_error="return", use_tqdm=False)
    assert isinstance(outputs[0].error, RequestFailedError)
    assert "NaN or infinity" in str(outputs[0].error)
    assert outputs[1].outputs is not None


def test_an_interrupted_step_is_computed_again(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in the middle of a step an engine's request still gets its result."""
    engine, wanted = llm.engine, embedding(llm, "A red circle is above a blue square")
    engine.add_request("again", "A red circle is above a blue square", PoolingParams(task="embed"))  # type: ignore[arg-type]
    with monkeypatch.context() as patched:
        patched.setattr(engine.output_processor, "process", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    found: list[Any] = []
    while engine.has_unfinished_requests():
        found += engine.step()
    np.testing.assert_allclose(found[0].outputs.data, wanted, rtol=0, atol=1e-5)
    engine.scheduler.blocks.check_integrity()


def test_a_model_that_sleeps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait, and those that are aborted end."""
    engine = llm.engine
    monkeypatch.setattr(engine.scheduler, "max_num_seqs", 0)
    engine.add_request("a", "hello", PoolingParams(task="embed"))  # type: ignore[arg-type]
    assert not engine.has_unfinished_requests()
    engine.abort_request("a")
    assert engine.has_unfinished_requests()
    assert [str(output.error) for output in engine.step()] == ["the request was aborted before it had a result"]
    assert not engine.has_unfinished_requests()


def test_a_model_that_generates(tiny_llava: Path) -> None:
    """A model loaded to generate text says how to load it for embeddings; a pooling one cannot serve text commands."""
    with LLM(tiny_llava, **SMALL) as generating:
        for call in (generating.embed, generating.classify, generating.reward):
            with pytest.raises(InvalidParameterError, match=r"to generate text.*load (the model|a reward)"):
                call("a", use_tqdm=False)
    with pytest.raises(ConfigError, match="embed, token_embed"):
        LLMEngine(EngineConfig.from_kwargs(model=str(tiny_llava), convert="embed"))


def test_asyncio(tiny_llava: Path, llm: LLM) -> None:
    """`AsyncLLM.encode` yields one output; requests at once equal those alone; text is refused."""

    async def run() -> list[Any]:
        async with AsyncLLM(tiny_llava, convert="embed", **SMALL) as served:

            async def one(prompt: Any) -> Any:
                return [output async for output in served.encode(prompt, PoolingParams(task="embed"))]

            with pytest.raises(InvalidParameterError, match="no task 'generate'"):
                async for _ in served.generate("a"):
                    pass
            return list(await asyncio.gather(*map(one, ["A red circle", "yes", ask(random_image(40, 40, 1))])))

    found = asyncio.run(run())
    assert [len(outputs) for outputs in found] == [1, 1, 1]
    np.testing.assert_allclose(found[0][0].outputs.data, embedding(llm, "A red circle"), rtol=0, atol=1e-5)

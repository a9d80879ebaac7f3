"""The engine in a process of its own gives what it gives in this one: outputs, errors, aborts; and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from corellm import LLM, AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from corellm.engine.process import link
from corellm.engine.process.client import ProcessLLM
from corellm.errors import AbsentMethodError, CorellmError, InvalidParameterError, RequestFailedError
from tests.fixtures import random_image

pytestmark = pytest.mark.fresh_starts
ENGINE = {"dtype": "float32", "max_num_batched_tokens": 64, "block_size": 8, "max_model_len": 256}
ENDLESS = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[ProcessLLM]:
    loaded = ProcessLLM(str(tiny_llava), **ENGINE)
    yield loaded
    loaded.close()


def make_image(seed: int, images: int = 1) -> dict[str, Any]:
    return {
        "prompt": f"USER: {'<image>' * images} what? ASSISTANT:",
        "multi_modal_data": {"image": [random_image(40, 30, seed + i) for i in range(images)]},
    }


async def final(llm: AsyncLLM, prompt: Any, params: SamplingParams, request_id: str | None = None) -> RequestOutput:
    """The last output of a request."""
    async for output in llm.generate(prompt, params, request_id):
        last = output
    return last


async def idle(llm: ProcessLLM) -> dict[str, float]:
    """The metrics once no request is in flight."""
    while True:
        metrics = {metric.name.removeprefix("corellm:"): metric.value for metric in await llm.get_metrics()}
        if not metrics["num_requests_running"] + metrics["num_requests_waiting"]:
            return metrics
        await asyncio.sleep(0.01)


def mixed_requests(count: int) -> list[tuple[Any, SamplingParams]]:
    """Requests of all kinds: text, token ids, images, several completions, log-probabilities, stop strings, seeds."""
    prompts = ["USER: hello ASSISTANT:", [1, 40, 50, 60, 70], make_image(1), make_image(2, images=2)]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 3, "prompt_logprobs": 2},
        {"temperature": 0.8, "seed": 5, "n": 3},
        {"temperature": 0, "stop": ["e", "pe"], "include_stop_str_in_output": True},
        {"temperature": 0, "truncate_prompt_tokens": 4, "ignore_eos": True},
        {"temperature": 0.5, "seed": 2, "logit_bias": {7: 4.0}, "bad_words": ["the"], "min_tokens": 3},
        {"temperature": 0, "detokenize": False, "stop_token_ids": [3, 9]},
        {"temperature": 0, "logprobs": 1, "skip_special_tokens": False, "allowed_token_ids": list(range(3, 90))},
    ]
    requests = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        prompt = prompts[number // len(kinds) % len(prompts)]
        if "truncate_prompt_tokens" in kind and isinstance(prompt, dict):
            kind = {"temperature": 0}  # an item cannot be cut
        requests.append((prompt, SamplingParams(max_tokens=6 + number % 7, **kind)))
    return requests


def assert_same(found: RequestOutput, wanted: RequestOutput) -> None:
    """Everything but times, ids and what was cached; log-probabilities but for rounding."""
    assert found.error is wanted.error is None
    assert found.finished
    assert (found.prompt, found.prompt_token_ids) == (wanted.prompt, wanted.prompt_token_ids)
    assert found.multi_modal_placeholders == wanted.multi_modal_placeholders
    assert (found.prompt_logprobs is None) == (wanted.prompt_logprobs is None)
    assert found.metrics is not None
    assert found.metrics.num_generation_tokens == sum(len(one.token_ids) for one in wanted.outputs)
    for one, other in zip(found.outputs, wanted.outputs, strict=True):
        names = ("index", "text", "token_ids", "finish_reason", "stop_reason")
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
        assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)
    all_found = [*(found.outputs[0].logprobs or ()), *filter(None, found.prompt_logprobs or ())]
    all_wanted = [*(wanted.outputs[0].logprobs or ()), *filter(None, wanted.prompt_logprobs or ())]
    for here, there in zip(all_found, all_wanted, strict=True):
        assert [(token, value.rank) for token, value in here.items()] == [(t, v.rank) for t, v in there.items()]
        assert [v.logprob for v in here.values()] == pytest.approx([v.logprob for v in there.values()], abs=1e-4)
        assert [v.decoded_token for v in here.values()] == [v.decoded_token for v in there.values()]


def test_64_mixed_requests_equal_the_offline_engine(llm: ProcessLLM, tiny_llava: Path) -> None:
    """All at once, token for token, whichever way outputs are asked for."""
    requests = mixed_requests(64)
    offline = LLM(str(tiny_llava), **ENGINE)
    wanted = offline.generate([prompt for prompt, _ in requests], [params for _, params in requests], use_tqdm=False)

    async def one(number: int) -> RequestOutput:
        prompt, params = requests[number]
        params = params.clone()
        params.output_kind = list(RequestOutputKind)[number % 3]
        whole: RequestOutput | None = None
        async for output in llm.generate(prompt, params):
            joins = whole is not None and params.output_kind is RequestOutputKind.DELTA
            whole = whole.followed_by(output) if joins and whole is not None else output
        assert whole is not None
        return whole

    async def main() -> list[RequestOutput]:
        return await asyncio.gather(*(one(number) for number in range(64)))

    for found, expected in zip(asyncio.run(main()), wanted, strict=True):
        assert_same(found, expected)


def test_it_sleeps_and_gets_other_weights(llm: ProcessLLM, tiny_llava: Path) -> None:
    """Tensors go to the other process in files, which do not stay; what does not fit is refused by its name there."""
    own = load_file(tiny_llava / "model.safetensors")
    other = {name: tensor.flip(0) for name, tensor in own.items()}
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1, ignore_eos=True)

    async def main() -> None:
        want = await final(llm, "USER: hello ASSISTANT:", params)
        await llm.sleep(2)
        waiting = asyncio.ensure_future(final(llm, "USER: hello ASSISTANT:", params))
        await llm.update_weights(other)
        await llm.wake_up(["weights"])
        assert await llm.is_sleeping()
        await llm.wake_up("kv_cache")
        assert not await llm.is_sleeping()
        assert (await waiting).outputs[0].logprobs != want.outputs[0].logprobs
        with pytest.raises(InvalidParameterError, match="has no 'none'"):
            await llm.update_weights({**own, "none": own.popitem()[1]})
        await llm.update_weights(tiny_llava)
        assert_same(await final(llm, "USER: hello ASSISTANT:", params), want)

    asyncio.run(main())


def test_conversations_are_prepared_here(llm: ProcessLLM) -> None:
    """A chat with an image gives what its rendered prompt gives; the engine's process sees tokens only."""
    messages = [{"role": "user", "content": [{"type": "image", "image": random_image(40, 30, 7)}, "what?"]}]

    async def main() -> None:
        prompt = llm.input_processor.process_chat(messages)
        async for output in llm.chat(messages, SamplingParams(temperature=0, max_tokens=5)):
            last = output
        assert last.prompt_token_ids == prompt.token_ids
        assert last.prompt == prompt.text
        assert len(last.outputs[0].token_ids) == 5

    asyncio.run(main())


def test_outputs_that_were_read_do_not_change(llm: ProcessLLM) -> None:
    """Every output is a state of its own, and each holds more than the one before."""

    async def main() -> None:
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        outputs = [output async for output in llm.generate("USER: a ASSISTANT:", params)]
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        assert lengths == sorted(set(lengths))
        assert lengths[-1] == 20
        assert all(output.request_id == outputs[0].request_id for output in outputs)

    asyncio.run(main())


def wrong_requests() -> list[tuple[Any, SamplingParams]]:
    return [
        ("", SamplingParams()),
        ([5, 10**6], SamplingParams()),
        ("USER: <image> ASSISTANT:", SamplingParams()),
        ({**make_image(1), "prompt": "no placeholder"}, SamplingParams()),
        ({"prompt": "a", "priority": 3}, SamplingParams()),
        ({"prompt": "a", "multi_modal_data": {"audio": [0.0]}}, SamplingParams()),
        ({"prompt": "<image>", "multi_modal_data": {"image": b"not an image"}}, SamplingParams()),
        ([7] * 400, SamplingParams()),
        (make_image(3), SamplingParams(truncate_prompt_tokens=15)),
        ("a", SamplingParams(stop_token_ids=[10**6])),
        ("a", SamplingParams(truncate_prompt_tokens=-1, max_tokens=500)),
    ]


def test_wrong_requests_get_the_errors_of_this_process(llm: ProcessLLM, tiny_llava: Path) -> None:
    """The same type, text and attributes, whether they are found here or in the engine's process."""
    here = AsyncLLM(str(tiny_llava), **ENGINE)

    async def error_of(engine: AsyncLLM, prompt: Any, params: SamplingParams) -> tuple[Any, ...]:
        with pytest.raises(CorellmError) as raised:
            await final(engine, prompt, params, "mine")
        return type(raised.value), str(raised.value), vars(raised.value), raised.value.status

    async def main() -> None:
        for prompt, params in wrong_requests():
            assert await error_of(llm, prompt, params) == await error_of(here, prompt, params)

    asyncio.run(main())
    here.close()


def test_aborts(llm: ProcessLLM) -> None:
    """By id there is a last output; leaving the loop, and a second request of one name, cost nothing."""

    async def main() -> None:
        is_aborted = False
        async for output in llm.generate("USER: a ASSISTANT:", ENDLESS, "mine"):
            if not (is_aborted or output.finished):
                is_aborted = True
                with pytest.raises(InvalidParameterError, match="running already"):
                    await final(llm, "b", ENDLESS, "mine")
                await llm.abort(["mine", "no such request"])
        assert output.outputs[0].finish_reason == "abort"
        assert len(output.outputs[0].token_ids) < 200
        async for _ in llm.generate(make_image(4), ENDLESS, "mine"):
            break
        assert (await idle(llm))["kv_cache_usage_perc"] == 0

    asyncio.run(main())


def test_maintenance(llm: ProcessLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches are emptied in both processes, metrics are of both, and traces are written."""

    async def main() -> None:
        await final(llm, make_image(5), SamplingParams(max_tokens=2))
        before = await idle(llm)
        await final(llm, make_image(5), SamplingParams(max_tokens=2))
        after = await idle(llm)
        assert after["mm_cache_hits"] == before["mm_cache_hits"] + 1
        assert after["prefix_cache_hits"] > before["prefix_cache_hits"]
        assert after["generation_tokens"] == before["generation_tokens"] + 2
        await llm.reset_mm_cache()
        assert await llm.reset_prefix_cache()
        await final(llm, make_image(5), SamplingParams(max_tokens=2))
        emptied = await idle(llm)
        assert [emptied[n] - after[n] for n in ("mm_cache_hits", "prefix_cache_hits")] == [0, 0]
        with pytest.raises(InvalidParameterError, match="start_profile"):
            await llm.stop_profile()
        with pytest.raises(AbsentMethodError, match="apply_model"):
            await llm.apply_model(len)
        with pytest.raises(InvalidParameterError, match="plain data"):  # before it is sent
            await llm.in_engine(repr, object())
        with pytest.raises(RequestFailedError, match="TypeError"):  # the result cannot come back
            await llm.in_engine(type)
        for function in (lambda engine: 1, partial(repr), "repr", bytes.fromhex, final.__get__(llm)):
            with pytest.raises(InvalidParameterError, match="importable module"):
                await llm.in_engine(function)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(link, "MAX_MESSAGE_BYTES", 100)
            with pytest.raises(InvalidParameterError, match="at most 100"):
                await llm.in_engine(repr, "x" * 100)
        assert "LLMEngine" in await llm.in_engine(repr)
        await llm.start_profile(tmp_path / "trace.json")
        await final(llm, "a", SamplingParams(max_tokens=2))
        assert await llm.stop_profile() == tmp_path / "trace.json"
        assert "traceEvents" in (tmp_path / "trace.json").read_text()

    asyncio.run(main())
    assert llm.max_model_len == 256


def test_the_api_process_alone_decides_when_the_engine_ends(llm: ProcessLLM) -> None:
    """Signals that go to all processes of a terminal or a service do not end the engine."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(llm.pid, number)
    assert asyncio.run(final(llm, "USER: a ASSISTANT:", SamplingParams(max_tokens=3, ignore_eos=True))).finished


def descriptors(pid: int) -> list[str]:
    """What a process has open, by kind: not what a GPU's driver opens, nor the descriptor that lists them."""
    folder = f"/proc/{pid}/fd"
    kinds = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            kinds.append(os.readlink(f"{folder}/{name}").split(":[")[0])
    return sorted(kind for kind in kinds if not kind.startswith("/dev/nvidia"))


def holds_tensors(pid: int) -> bool:
    """Whether a process has memory mapped that came with a request."""
    return "corellm-tensors" in Path(f"/proc/{pid}/maps").read_text()


def test_nothing_is_left_after_random_aborts(llm: ProcessLLM) -> None:
    """200 requests, each left at a random moment: no block, descriptor or memory is held in either process."""
    chance = random.Random(0)
    engine = llm.pid

    async def one(number: int, moments: list[float]) -> None:
        prompt = make_image(number % 20, images=1 + number % 2) if number % 3 else f"USER: {number} ASSISTANT:"
        task = asyncio.ensure_future(final(llm, prompt, SamplingParams(max_tokens=12, ignore_eos=True)))
        await asyncio.wait([task], timeout=moments[number])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def main() -> None:
        await final(llm, make_image(0), SamplingParams(max_tokens=2))
        await idle(llm)
        gc.collect()  # what other tests of this process left open
        before = [Counter(descriptors(pid)) for pid in (engine, os.getpid())]
        moments = [chance.choice([0, 0.001, 0.01, 0.05, 1]) for _ in range(200)]
        for start in range(0, 200, 50):
            await asyncio.gather(*(one(number, moments) for number in range(start, start + 50)))
        metrics = await idle(llm)
        assert metrics["kv_cache_usage_perc"] == 0
        for pid, held in zip((engine, os.getpid()), before, strict=True):
            left = Counter(descriptors(pid)) - held
            assert not left, pid
        assert not holds_tensors(engine)
        assert not holds_tensors(os.getpid())

    asyncio.run(main())

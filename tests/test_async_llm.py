"""The engine for asyncio: concurrent streams, aborts on cancellation, errors where they belong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from corellm import AsyncLLM, CompletionOutput, RequestOutputKind, SamplingParams
from corellm.errors import EngineDeadError, InvalidParameterError, MediaError, PromptError, SurplusPlaceholderError
from tests.fixtures import random_image

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def llm(tiny_llava: Path) -> Iterator[AsyncLLM]:
    loaded = AsyncLLM(str(tiny_llava), dtype="float32", max_num_batched_tokens=64, block_size=8)
    yield loaded
    if loaded.dead is None:
        loaded.close()


def make_image(seed: int) -> dict[str, Any]:
    return {"prompt": "USER: <image> what? ASSISTANT:", "multi_modal_data": {"image": random_image(40, 30, seed)}}


async def collect(llm: AsyncLLM, prompt: Any, params: SamplingParams = GREEDY) -> list[int]:
    """All tokens of one stream, which must grow."""
    tokens: list[int] = []
    async for output in llm.generate(prompt, params):
        assert output.outputs[0].token_ids[: len(tokens)] == tokens
        tokens = output.outputs[0].token_ids
    return tokens


async def free_blocks(llm: AsyncLLM) -> tuple[int, int]:
    """Free and all blocks, once the engine is idle."""
    while True:
        running, free, capacity = await llm.in_engine(
            lambda e: (e.has_unfinished_requests(), e.scheduler.blocks.num_free_blocks, e.scheduler.blocks.capacity)
        )
        if not running:
            return free, capacity
        await asyncio.sleep(0.01)


def test_concurrent_streams_equal_single_ones(llm: AsyncLLM) -> None:
    """Twelve at once give what each gives alone."""

    async def main() -> None:
        alone = [await collect(llm, make_image(s)) for s in range(4)]
        together = await asyncio.gather(*(collect(llm, make_image(s % 4)) for s in range(12)))
        assert together == alone * 3
        assert all(len(tokens) == 12 for tokens in together)

    asyncio.run(main())


def test_a_slow_reader_of_deltas_misses_nothing(llm: AsyncLLM) -> None:
    """What came while it was busy comes at once, and no output that it has read is changed."""
    whole = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=1)
    deltas = SamplingParams(
        temperature=0, max_tokens=40, ignore_eos=True, logprobs=1, output_kind=RequestOutputKind.DELTA
    )

    async def main() -> None:
        async for output in llm.generate("USER: a ASSISTANT:", whole):
            want = output.outputs[0]
        parts: list[CompletionOutput] = []
        sizes: list[int] = []
        async for output in llm.generate("USER: a ASSISTANT:", deltas):
            parts += output.outputs
            sizes.append(len(output.outputs[0].token_ids))
            if len(parts) == 3:
                await free_blocks(llm)  # until all has been generated
        assert [len(part.token_ids) for part in parts] == sizes
        assert max(sizes) > 1
        assert [token for part in parts for token in part.token_ids] == want.token_ids
        assert "".join(part.text for part in parts) == want.text
        assert want.logprobs is not None
        assert [list(position) for part in parts for position in part.logprobs or ()] == list(map(list, want.logprobs))
        assert parts[-1].finish_reason == "length"

    asyncio.run(main())


def test_only_the_final_output(llm: AsyncLLM) -> None:
    """One output with everything, where no other is asked for."""
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)

    async def main() -> None:
        (output,) = [output async for output in llm.generate("USER: a ASSISTANT:", params)]
        assert output.finished
        assert len(output.outputs[0].token_ids) == 9

    asyncio.run(main())


def test_a_request_arrives_before_its_prompt_is_prepared(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token's latency counts preparing, and parameters are the request's own from there on."""
    process = llm.engine.input_processor.process
    begun: list[float] = []
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)

    def spy(prompt: Any, **_: Any) -> Any:
        begun.append(time.monotonic())
        params.max_tokens = 1
        return process(prompt)

    monkeypatch.setattr(llm.engine.input_processor, "process", spy)

    async def main() -> None:
        async for output in llm.generate("USER: a ASSISTANT:", params):
            last = output
        assert last.metrics is not None
        assert last.metrics.arrival_time <= begun[0] <= last.metrics.queued_ts
        assert len(last.outputs[0].token_ids) == 3

    asyncio.run(main())


def test_leaving_the_loop_aborts(llm: AsyncLLM) -> None:
    """Breaking out, cancelling the task, and cancelling before the first token free everything; others go on."""

    async def main() -> None:
        want = await collect(llm, make_image(9))
        endless = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
        other = asyncio.create_task(collect(llm, make_image(9)))
        stream = llm.generate(make_image(1), endless)
        async for _ in stream:
            break
        await stream.aclose()
        for turns in (0, 1, 5, 20):
            task = asyncio.create_task(collect(llm, make_image(2), endless))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await other == want
        free, capacity = await free_blocks(llm)
        assert free == capacity

    asyncio.run(main())


def test_abort_by_id(llm: AsyncLLM) -> None:
    """The stream gets a last output with the reason."""

    async def main() -> None:
        params = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
        reasons = []
        async for output in llm.generate("USER: go on ASSISTANT:", params, request_id="mine"):
            if len(output.outputs[0].token_ids) >= 3:
                await llm.abort("mine")
            reasons.append(output.outputs[0].finish_reason)
        assert reasons[-1] == "abort"

    asyncio.run(main())


def test_errors_reach_the_one_who_caused_them(llm: AsyncLLM) -> None:
    """A wrong prompt raises in its own coroutine; the others' tokens do not change."""

    async def main() -> None:
        want = await collect(llm, make_image(3))
        bad: list[Any] = ["what <image>?", {**make_image(1), "multi_modal_data": {"image": b"junk"}}]
        results = await asyncio.gather(
            collect(llm, make_image(3)),
            *(collect(llm, p) for p in bad),
            collect(llm, make_image(3)),
            return_exceptions=True,
        )
        assert results[0] == results[3] == want
        assert isinstance(results[1], SurplusPlaceholderError)
        assert isinstance(results[2], MediaError)
        with pytest.raises(InvalidParameterError, match="no token id"):
            await collect(llm, "hi", SamplingParams(stop_token_ids=[10**7]))

    asyncio.run(main())


def test_a_name_can_be_used_again_at_once(llm: AsyncLLM) -> None:
    """A stream that was left does not send its outputs to the next one of the same name."""

    async def main() -> None:
        want = await collect(llm, "USER: b ASSISTANT:")
        for _ in range(12):
            first = llm.generate("USER: something else ASSISTANT:", SamplingParams(max_tokens=500), request_id="x")
            await anext(first)
            await first.aclose()
            seen = [output async for output in llm.generate("USER: b ASSISTANT:", GREEDY, request_id="x")]
            assert all(
                o.request_id == "x" and o.outputs[0].token_ids == want[: len(o.outputs[0].token_ids)] for o in seen
            )
            assert seen[-1].outputs[0].token_ids == want

    asyncio.run(main())


def test_abort_while_the_prompt_is_prepared(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort that comes before the engine knows of the request is not lost."""
    right = llm.engine.input_processor.process

    began, go_on = threading.Event(), threading.Event()

    def slow(prompt: Any, **_: Any) -> Any:
        began.set()
        assert go_on.wait(600)
        return right(prompt)

    async def main() -> None:
        monkeypatch.setattr(llm.engine.input_processor, "process", slow)
        params = SamplingParams(max_tokens=900, ignore_eos=True)
        stream = llm.generate("USER: a ASSISTANT:", params, request_id="early")
        task = asyncio.create_task(anext(stream))
        assert await asyncio.to_thread(began.wait, 600)
        await llm.abort("early")
        go_on.set()
        outputs = [await task, *[output async for output in stream]]
        assert outputs[-1].outputs[0].finish_reason == "abort"

    asyncio.run(main())


@pytest.mark.parametrize("params", [{"temperature": 0}, "greedy"])
def test_nothing_a_request_brings_ends_the_engine(llm: AsyncLLM, params: Any) -> None:
    """Parameters of a wrong type are that request's error."""

    async def main() -> None:
        with pytest.raises(InvalidParameterError, match="SamplingParams"):
            await collect(llm, "hi", params)
        assert await collect(llm, "hi")

    asyncio.run(main())


def test_a_cancelled_call_harms_no_request(llm: AsyncLLM) -> None:
    """Cancelling the wait for a call into the engine does not end the engine."""

    async def main() -> None:
        began, go_on = threading.Event(), threading.Event()
        call = asyncio.create_task(llm.apply_model(lambda _: (began.set(), go_on.wait(600))))
        assert await asyncio.to_thread(began.wait, 600)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
        assert await collect(llm, "hi")

    asyncio.run(main())


def test_a_finished_output_outlives_the_engine(llm: AsyncLLM) -> None:
    """A slow reader still gets the end of what was finished before the engine stopped."""

    async def main() -> None:
        stream = llm.generate("USER: a ASSISTANT:", GREEDY)
        outputs = [await anext(stream)]
        await free_blocks(llm)
        await asyncio.to_thread(llm.close)
        outputs += [output async for output in stream]
        assert outputs[-1].finished
        assert len(outputs[-1].outputs[0].token_ids) == 12

    asyncio.run(main())


def test_calls_after_the_end_fail(llm: AsyncLLM) -> None:
    """A call into a closed engine fails at once."""
    llm.close()
    with pytest.raises(EngineDeadError, match="shut down"):
        asyncio.run(asyncio.wait_for(llm.get_metrics(), 600))


def test_duplicate_id(llm: AsyncLLM) -> None:
    """Refused at once, and the first goes on."""

    async def main() -> None:
        first = llm.generate("USER: a ASSISTANT:", SamplingParams(max_tokens=500, ignore_eos=True), request_id="x")
        await anext(first)
        with pytest.raises(InvalidParameterError, match="'x'"):
            await anext(llm.generate("USER: b ASSISTANT:", GREEDY, request_id="x"))
        rest = [output async for output in first]
        assert rest[-1].finished

    asyncio.run(main())


def test_a_dead_engine_fails_every_request(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that stops fails every waiting stream and every later one, with the cause."""

    def explode() -> Any:
        raise MemoryError("no memory left")

    async def main() -> None:
        monkeypatch.setattr(llm.engine, "step", explode)
        results = await asyncio.gather(*(collect(llm, make_image(s)) for s in range(3)), return_exceptions=True)
        assert all(isinstance(r, EngineDeadError) and "no memory left" in str(r) for r in results)
        with pytest.raises(EngineDeadError, match="no memory left"):
            await collect(llm, "later")

    asyncio.run(main())


def test_closing_fails_open_streams(tiny_llava: Path) -> None:
    """`async with` ends the thread; an open stream gets an error."""

    async def main() -> None:
        async with AsyncLLM(str(tiny_llava)) as llm:
            stream = llm.generate("USER: a ASSISTANT:", SamplingParams(max_tokens=900, ignore_eos=True))
            await anext(stream)
        with pytest.raises(EngineDeadError, match="shut down"):
            async for _ in stream:
                pass
        assert not llm._thread.is_alive()

    asyncio.run(main())


def test_closing_fails_prompts_that_wait_to_be_prepared(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the prompt that a thread works on and those queued behind it, with a sentence, and at once."""
    began, go_on = threading.Event(), threading.Event()
    process = llm.engine.input_processor.process

    def slow(prompt: Any, **_: Any) -> Any:
        began.set()
        go_on.wait(600)
        return process(prompt)

    async def main() -> None:
        monkeypatch.setattr(llm.engine.input_processor, "process", slow)
        waiting = [asyncio.ensure_future(collect(llm, "hi")) for _ in range(3)]
        await asyncio.to_thread(began.wait, 600)
        await asyncio.to_thread(llm.close)
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 600)
        assert all(isinstance(r, EngineDeadError) and "shut down" in str(r) for r in results), results
        go_on.set()

    asyncio.run(main())


def test_a_closed_loop_ends_its_requests(llm: AsyncLLM) -> None:
    """Nothing runs on that has no reader, and its id is free: while it runs, and after it finished unread."""
    params = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)

    def leave(params: SamplingParams) -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(anext(llm.generate("USER: a ASSISTANT:", params, request_id="mine")))
        loop.close()

    async def ask_again() -> None:
        assert len(await collect(llm, "USER: b ASSISTANT:")) == 12
        outputs = [o async for o in llm.generate("USER: a ASSISTANT:", GREEDY, request_id="mine")]
        assert outputs[-1].outputs[0].finish_reason == "length"

    for wanted in (params, GREEDY):
        leave(wanted)
        deadline = time.monotonic() + 600
        while asyncio.run(llm.in_engine(lambda engine: engine.has_unfinished_requests())):
            assert time.monotonic() < deadline, "a request without a reader runs on"
        asyncio.run(ask_again())
    assert not llm._streams


def test_a_template_that_does_not_end_costs_one_request(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, other text is completed after it, and the engine closes."""
    (defaults, *_) = llm.engine.input_processor.mm_processor.hooks.make_context.get_hookimpls()
    renderer = defaults.plugin._chat._templates
    monkeypatch.setattr(renderer, "_seconds", 1.0)
    loops = "".join("{% for _ in range(99999) %}" for _ in range(9)) + "".join("{% endfor %}" for _ in range(9))
    messages = [{"role": "user", "content": "Hello"}]

    async def ask_hostile() -> None:
        async for _ in llm.chat(messages, GREEDY, chat_template=loops):
            pass

    async def main() -> None:
        hostile = asyncio.create_task(ask_hostile())
        assert len(await asyncio.wait_for(collect(llm, "USER: hello ASSISTANT:"), 600)) == 12
        with pytest.raises(PromptError, match="within 1 s"):
            await hostile
        renderer._seconds = 60.0
        outputs = [output async for output in llm.chat(messages, GREEDY)]
        assert outputs[-1].finished

    asyncio.run(main())
    llm.close()
    assert all(child._running is None for child in renderer._children._children)


def test_unknown_arguments_of_chat(llm: AsyncLLM) -> None:
    """They are named, as a wrong value is."""

    async def ask(**arguments: Any) -> None:
        async for _ in llm.chat([{"role": "user", "content": "Hello"}], GREEDY, **arguments):
            pass

    with pytest.raises(InvalidParameterError, match=r"'tool'; .*'tools'"):
        asyncio.run(ask(tool=[]))


@pytest.mark.parametrize("level", [1, 2])
def test_requests_wait_while_it_sleeps(llm: AsyncLLM, level: int) -> None:
    """One that runs goes on with the same tokens, one that comes is taken, and one that is aborted ends at once."""
    whole = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

    async def main() -> None:
        want = [await collect(llm, make_image(seed), whole) for seed in (1, 2)]
        stream = llm.generate(make_image(1), whole)
        begun = await anext(stream)
        await llm.sleep(level)
        assert await llm.is_sleeping()
        later = asyncio.ensure_future(collect(llm, make_image(2), whole))
        aborted = asyncio.ensure_future(anext(llm.generate("USER: a ASSISTANT:", whole, "other")))
        while await llm.in_engine(lambda engine: engine.scheduler.num_waiting) < 3:
            await asyncio.sleep(0.01)
        for _ in range(60_000):  # it may still be taking what was asked
            if llm.seconds_silent:
                await asyncio.sleep(0.01)
        assert llm.seconds_silent == 0  # and not for as long as it sleeps
        await llm.abort("other")
        assert (await aborted).outputs[0].finish_reason == "abort"
        assert not later.done()
        await llm.wake_up()
        async for output in stream:
            begun = output
        assert [begun.outputs[0].token_ids, await later] == want

    asyncio.run(main())


def test_weights_change_beside_requests(llm: AsyncLLM, tiny_llava: Path, make_llava: Callable[..., Path]) -> None:
    """From a directory and from tensors, while another request runs; then each is as a load of these weights."""
    other = make_llava(seed=1)

    async def main() -> None:
        want = await collect(llm, "USER: a ASSISTANT:")
        running = asyncio.ensure_future(collect(llm, "USER: b ASSISTANT:", SamplingParams(max_tokens=60)))
        await llm.update_weights(other)
        assert (found := await collect(llm, "USER: a ASSISTANT:")) != want
        await running
        with pytest.raises(InvalidParameterError, match="has no 'lm_haed'"):
            await llm.update_weights({"lm_haed": torch.zeros(1)})
        assert await collect(llm, "USER: a ASSISTANT:") == found
        await llm.update_weights(load_file(tiny_llava / "model.safetensors"))
        assert await collect(llm, "USER: a ASSISTANT:") == want

    asyncio.run(main())

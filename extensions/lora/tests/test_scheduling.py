"""Adapters that wait: for their files, alone, and for a slot, in their turn; many of them leave nothing behind."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from corellm import LLM, AsyncLLM, LoRARequest, SamplingParams
from corellm.errors import InvalidParameterError, RequestFailedError
from corellm_lora.adapter_files import AdapterFiles
from corellm_lora.adapters import Adapters
from corellm_lora.calls import AsyncLoRACalls
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.lora.tests.adapters import save_adapter

MOST = 4
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("llama"), intermediate_size=96)


@pytest.fixture(scope="module")
def adapters(path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    """200 adapters: other bytes each, and other factors in turns."""
    reference = transformers.LlamaForCausalLM.from_pretrained(path)
    root, made = tmp_path_factory.mktemp("adapters"), []
    saved = [save_adapter(root / f"saved-{n}", reference, n, r=4, target_modules=["q_proj"]) for n in range(3)]
    for number in range(200):
        folder = root / str(number)
        folder.mkdir()
        for file in Path(saved[number % 3].lora_path).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        config = folder / "adapter_config.json"
        config.write_text(config.read_text() + " " * number)
        made.append(LoRARequest(str(number), number + 1, str(folder)))
    return made


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    """The model, for four adapters at a time."""
    with LLM(str(path), max_model_len=64, max_num_seqs=8, enable_lora=True, max_loras=MOST, max_cpu_loras=6) as loaded:
        yield loaded


def part_of(llm: LLM) -> Adapters:
    (part,) = (part for part in llm.engine.runner.parts if isinstance(part, Adapters))
    return part


def metrics_of(llm: LLM) -> dict[str, float]:
    begin = "corellm:lora_adapters_"
    return {m.name.removeprefix(begin): m.value for m in llm.get_metrics() if m.name.startswith(begin)}


def failing_values(adapter: LoRARequest, broken: list[bool]) -> Any:
    """In place of `AdapterFiles.values`: it fails for one adapter, for as long as that is broken."""
    values = AdapterFiles.values

    def failing(files: AdapterFiles) -> Any:
        if broken[0] and files.path == Path(adapter.lora_path):
            raise OSError("the disk is gone")
        return values(files)

    return failing


def add(llm: LLM, name: str, adapter: LoRARequest | None, params: SamplingParams = PARAMS) -> None:
    keys = {} if adapter is None else {"lora_request": adapter}
    llm.engine.add_request(name, {"prompt": "yes", **keys}, params)


def ended(llm: LLM, most_steps: int = 1000) -> dict[str, Any]:
    """Final outputs of all requests, in the order in which they ended."""
    found: dict[str, Any] = {}
    for _ in range(most_steps):
        found |= {output.request_id: output for output in llm.engine.step() if output.finished}
        if not llm.engine.has_unfinished_requests():
            break
    return found


def test_many_adapters_leave_nothing(llm: LLM, adapters: list[LoRARequest]) -> None:
    """200 of them through four slots, beside requests without: all end, and no more is held than before the last."""
    chosen = [*adapters, None, None]
    outputs = llm.generate(["yes"] * 202, PARAMS, use_tqdm=False, lora_request=chosen)
    texts = [tuple(output.outputs[0].token_ids) for output in outputs]
    assert len(set(texts[:3])) == 3
    assert texts[:200] == [texts[number % 3] for number in range(200)]
    assert texts[200] == texts[201]
    part = part_of(llm)
    assert (len(part._shelf), len(part._slot_of), len(part._users), len(part._free)) == (6, MOST, 0, 0)
    assert part._shelf.num_read == 200
    found = {"running": 0, "waiting": 0, "loaded": MOST, "kept": 6, "read": 200, "replaced": 200 - MOST}
    assert metrics_of(llm) == found
    assert sorted(part._slot_of.values()) == list(range(1, MOST + 1))
    llm.engine.scheduler.blocks.check_integrity()


def test_an_adapter_that_waits_for_a_slot_gets_its_turn(llm: LLM, adapters: list[LoRARequest]) -> None:
    """Requests of those that run keep coming, and it starts as soon as those end that came before it."""
    for adapter in (adapters[MOST], *adapters[:MOST]):  # all are read, and it has lost its slot
        add(llm, "before", adapter)
        ended(llm)
    for number in range(8):
        add(llm, f"first-{number}", adapters[number % MOST])
    add(llm, "waiting", adapters[MOST])
    llm.engine.step()
    assert (metrics_of(llm)["running"], metrics_of(llm)["waiting"]) == (MOST, 1)
    order, number = [], 0
    while "waiting" not in order:
        assert number < 100
        add(llm, f"later-{number}", adapters[number % MOST])
        number += 1
        order += [output.request_id for output in llm.engine.step() if output.finished]
    assert set(order[: order.index("waiting")]) <= {f"first-{n}" for n in range(8)}
    ended(llm)


def test_others_go_on_while_an_adapter_is_read(
    llm: LLM, adapters: list[LoRARequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that run and those that come later; its own requests wait, and run when it is there."""
    may_go_on, values, readers = threading.Event(), AdapterFiles.values, set()

    def slow(files: AdapterFiles) -> Any:
        readers.add(threading.current_thread())
        if files.path == Path(adapters[9].lora_path):
            assert may_go_on.wait(600)
        return values(files)

    monkeypatch.setattr(AdapterFiles, "values", slow)
    long = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    add(llm, "before", None, long)
    llm.engine.step()
    add(llm, "slow", adapters[9])
    add(llm, "slow, too", adapters[9])
    add(llm, "after", None)
    assert metrics_of(llm)["running"] == 0
    done = []
    for _ in range(40):
        done += [output.request_id for output in llm.engine.step() if output.finished]
    assert sorted(done) == ["after", "before"]
    may_go_on.set()
    assert sorted(ended(llm)) == ["slow", "slow, too"]
    assert threading.main_thread() not in readers
    assert part_of(llm)._shelf.num_read == 1


def test_an_adapter_that_cannot_be_read_fails_alone(
    llm: LLM, adapters: list[LoRARequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests end with the error, whether they wait or come later; others do not, and it may be right again."""
    broken = [True]
    monkeypatch.setattr(AdapterFiles, "values", failing_values(adapters[7], broken))
    for name, adapter in {"a": adapters[7], "b": adapters[7], "c": adapters[8], "d": None}.items():
        add(llm, name, adapter)
    outputs = ended(llm)
    assert {name for name, output in outputs.items() if output.error is not None} == {"a", "b"}
    assert isinstance(outputs["a"].error, RequestFailedError)
    assert "the disk is gone" in str(outputs["a"].error)
    assert sorted(outputs) == ["a", "b", "c", "d"]
    broken[0] = False
    add(llm, "again", adapters[7])
    assert ended(llm)["again"].error is None


def test_adapters_that_are_added_and_pinned(llm: LLM, adapters: list[LoRARequest]) -> None:
    """An added one is read before its request comes; a pinned one is not left for others; a removed one is."""
    with pytest.raises(InvalidParameterError, match="there is no LoRA adapter 1; add_lora first"):
        llm.pin_lora(1)
    assert llm.add_lora(adapters[0])
    assert not llm.add_lora(adapters[0])
    assert llm.add_lora(adapters[1])
    assert llm.list_loras() == {1, 2}
    shelf = part_of(llm)._shelf
    assert (shelf.num_read, len(shelf)) == (2, 2)
    llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapters[0])
    assert shelf.num_read == 2
    assert llm.pin_lora(1)
    llm.generate(["yes"] * 20, PARAMS, use_tqdm=False, lora_request=adapters[20:40])
    assert (shelf.num_read, len(shelf)) == (22, 6)
    llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapters[0])
    assert shelf.num_read == 22
    llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapters[1])
    assert shelf.num_read == 23
    other = LoRARequest("another", 1, adapters[2].lora_path)
    assert llm.add_lora(other)
    llm.generate(["yes"] * 20, PARAMS, use_tqdm=False, lora_request=adapters[20:40])
    before = shelf.num_read
    llm.generate("yes", PARAMS, use_tqdm=False, lora_request=adapters[0])
    assert shelf.num_read == before + 1
    llm.generate("yes", PARAMS, use_tqdm=False, lora_request=other)  # which has the first one's number, and is pinned
    assert shelf.num_read == before + 1
    assert llm.remove_lora(1)
    assert not llm.remove_lora(1)
    assert llm.list_loras() == {2}


def test_no_more_are_pinned_than_are_kept(
    llm: LLM, adapters: list[LoRARequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And others still run, one after another, though none of them stays; one that cannot be read fails alone."""
    for number in range(6):
        llm.add_lora(adapters[number])
        llm.pin_lora(number + 1)
    assert llm.add_lora(LoRARequest("another", 6, adapters[20].lora_path))  # in the place of a pinned one
    llm.add_lora(adapters[6])
    with pytest.raises(InvalidParameterError, match=r"6 LoRA adapters are kept already, .* raise max_cpu_loras"):
        llm.pin_lora(7)
    outputs = llm.generate(["yes"] * 9, PARAMS, use_tqdm=False, lora_request=adapters[:9])
    assert [output.error for output in outputs] == [None] * 9
    with monkeypatch.context() as patched:
        patched.setattr(AdapterFiles, "values", failing_values(adapters[9], [True]))
        add(llm, "broken", adapters[9])
        add(llm, "beside", None)
        outputs_of = ended(llm)
    assert isinstance(outputs_of["broken"].error, RequestFailedError)
    assert outputs_of["beside"].error is None
    assert llm.remove_lora(1)
    assert llm.pin_lora(7)
    assert llm.list_loras() == {2, 3, 4, 5, 6, 7}


def test_an_engine_that_is_started_again_keeps_what_the_others_keep(
    llm: LLM, adapters: list[LoRARequest], tmp_path: Path
) -> None:
    """Pins, too; but for an adapter that is not there any more, of which its requests tell."""
    for number in llm.list_loras():
        llm.remove_lora(number)
    repeated: list[Any] = []
    gone = tmp_path / "gone"
    shutil.copytree(adapters[2].lora_path, gone)
    calls = AsyncLoRACalls(
        SimpleNamespace(
            input_processor=llm.engine.input_processor,
            in_engine=lambda *call: asyncio.to_thread(llm.in_engine, *call),
            repeat_in_new_engines=lambda *call: repeated.append(call),
        )
    )

    async def change() -> None:
        for number, request in enumerate((adapters[0], adapters[1], LoRARequest("gone", 3, str(gone))), start=1):
            assert await calls.add_lora(request)
            assert number == 2 or await calls.pin_lora(number)
        assert await calls.remove_lora(2)
        assert await calls.add_lora(adapters[3])

    asyncio.run(change())
    names, *call = repeated[-1]
    assert {one[0] for one in repeated} == {names}
    for number in (1, 3, 4):
        llm.remove_lora(number)
    shutil.rmtree(gone)
    assert llm.add_lora(adapters[1])  # which was removed as this one was being started
    llm.in_engine(*call)  # as in a new engine
    assert llm.list_loras() == {1, 4}
    assert part_of(llm).pinned == {1}


def test_adapters_are_added_while_requests_run(path: Path, adapters: list[LoRARequest]) -> None:
    """Awaited, between two steps; a model that takes none says so."""

    async def main(llm: AsyncLLM) -> None:
        assert await llm.add_lora(adapters[0])
        assert await llm.pin_lora(1)
        assert await llm.list_loras() == {1}
        outputs = [output async for output in llm.generate("yes", PARAMS, lora_request=adapters[0])]
        assert outputs[-1].finished
        assert await llm.remove_lora(1)

    options: dict[str, Any] = {"max_model_len": 64, "num_kv_blocks": 20}
    with closing(AsyncLLM(str(path), **options, enable_lora=True)) as llm:
        asyncio.run(main(llm))
    with LLM(str(path), **options) as plain, pytest.raises(InvalidParameterError, match="with enable_lora=True"):
        plain.list_loras()

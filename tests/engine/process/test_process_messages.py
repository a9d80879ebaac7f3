"""What crosses between the API process and the engine's: tensors, messages and errors arrive as they were sent."""

from __future__ import annotations

import inspect
import os
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm import errors
from corellm.config import EngineConfig
from corellm.engine.process import engine_main, messages
from corellm.engine.process.channel import MAX_MESSAGE_BYTES, Channel
from corellm.engine.process.codec import RequestCodec
from corellm.engine.process.engine_main import EngineLoop
from corellm.engine.process.faults import Fault, to_error, to_fault
from corellm.engine.process.link import EngineLink
from corellm.engine.process.messages import Delta, Outputs
from corellm.engine.process.remote_engine import RemoteEngine
from corellm.engine.process.tensors import TensorMemory, map_memory, restore
from corellm.errors import (
    ConfigError,
    ContractError,
    CorellmError,
    EngineDeadError,
    ItemLimitError,
    ProcessingError,
    RequestFailedError,
)
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.loading.model_use import ModelUse
from corellm.multimodal.nested import same_values
from corellm.sampling_params import SamplingParams

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.complex64,
)  # fmt: skip


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a channel."""
    ends = [Channel(end) for end in socket.socketpair()]
    yield ends[0], ends[1]
    for channel in ends:
        channel.close()


class Ending(dict[str, Any]):
    """Requests of which one ends, in another thread, as soon as it was looked for."""

    def __contains__(self, name: object) -> bool:
        return self.pop(name, None) is not None  # type: ignore[call-overload, no-any-return]


def test_a_request_that_ends_while_it_is_aborted(channels: tuple[Channel, Channel]) -> None:
    """The thread that reads outputs may take it at any moment: that is no error, which would end the engine."""
    link = EngineLink.__new__(EngineLink)
    link._process, link._requests = SimpleNamespace(channel=channels[0]), Ending(a=object())  # type: ignore[assignment]
    link.abort_request("a", silently=True)
    link.abort_request("a", silently=True)
    assert not link._requests


def test_an_engine_has_a_request_that_no_one_reads_until_it_says_otherwise() -> None:
    """It may be what the engine hangs in, or ends with."""
    link = EngineLink.__new__(EngineLink)
    sent: list[Any] = []
    link._process = SimpleNamespace(channel=SimpleNamespace(send=lambda *data: sent.append(data)))  # type: ignore[assignment]
    in_flight: Any = SimpleNamespace(output=lambda delta: SimpleNamespace(request_id=delta.request_id))
    link._requests, link._calls = dict.fromkeys("ab", in_flight), {}
    for name in "ab":
        link.abort_request(name, silently=True)
    assert (link.num_requests, len(sent)) == (2, 2)
    link._deliver(Outputs(1, [Delta("a", [], True)]), lambda outputs: None)
    assert link.num_requests == 1
    assert [output.request_id for output in link.fail_requests(lambda: EngineDeadError("it ended"))] == ["b"]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any dtype and shape, also empty, without dimensions, or a view with strides of its own."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    tensor = torch.randint(0, 2 if dtype is torch.bool else 99, shape, generator=generator).to(dtype)
    layout = draw(st.sampled_from(["whole", "transposed", "sliced", "expanded"]))
    if layout == "transposed":
        return tensor.permute(list(reversed(range(tensor.dim()))))
    if layout == "sliced" and tensor.dim():
        return tensor[::2]
    return tensor.unsqueeze(0).expand(3, *shape) if layout == "expanded" else tensor


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5)
nested = st.recursive(plain | tensors(), lambda inner: st.lists(inner, max_size=3), max_leaves=8)


def through_memory(data: Any) -> Any:
    """The data after a journey through memory and msgpack."""
    memory = TensorMemory()
    message = messages.encode(memory.refer(data))
    file = memory.write()
    try:
        return restore(messages.msgspec.msgpack.decode(message), map_memory(file))
    finally:
        if file is not None:
            os.close(file)


@given(nested)
@settings(deadline=None)
def test_items_arrive_as_they_were_sent(data: Any) -> None:
    """Structure, types, shapes and every bit of values; nested lists, and tensors that are no contiguous memory."""
    assert same_values(through_memory(data), data)


def test_tensors_share_the_memory_they_came_in() -> None:
    """No copy is made, tensors are aligned, and the memory is unmapped with the last of them."""
    small, large = through_memory([torch.arange(3, dtype=torch.uint8), torch.arange(1 << 16)])
    assert small.untyped_storage().data_ptr() % 64 == large.data_ptr() % 64 == 0
    assert "corellm-tensors" in mappings()
    del small
    assert "corellm-tensors" in mappings()
    large += 1  # another process does not see it; here it must not crash
    del large
    assert "corellm-tensors" not in mappings()


def mappings() -> str:
    with open("/proc/self/maps") as file:
        return file.read()


def test_what_cannot_cross_is_refused() -> None:
    """An object of an adapter's own is an error of its request, before anything is sent."""
    with pytest.raises(ProcessingError, match="cannot be sent"):
        TensorMemory().refer([torch.zeros(2), object()])
    with pytest.raises(ProcessingError, match="did not arrive"):
        restore(TensorMemory().refer(torch.zeros(2)), None)


def test_messages_keep_their_order_and_descriptors(channels: tuple[Channel, Channel]) -> None:
    """Small messages and those of many packets keep their order; a descriptor comes with its own message."""
    ours, theirs = channels
    files = [os.memfd_create(name) for name in ("a", "b")]
    for name, file in zip(b"ab", files, strict=True):
        os.write(file, bytes([name]))
    ours.send(b"first", files[0])
    ours.send(b"")
    ours.send(b"third" * 10_000, files[1])
    for file in files:
        os.close(file)
    received = []
    while len(received) < 3:
        received += theirs.receive(None)
    assert [data for data, _ in received] == [b"first", b"", b"third" * 10_000]
    assert received[1][1] is None
    for (_, file), name in ((received[0], b"a"), (received[2], b"b")):
        assert file is not None
        assert os.pread(file, 9, 0) == name
        assert not os.get_inheritable(file)
        os.close(file)


def test_the_end_of_a_channel_comes_after_its_messages(channels: tuple[Channel, Channel]) -> None:
    """Nothing that was sent before is lost, and no wait is longer than asked for."""
    ours, theirs = channels
    assert theirs.receive(0) == []
    ours.send(b"last")
    ours.finish()
    assert theirs.receive(None) == [(b"last", None)]
    with pytest.raises(EOFError):
        theirs.receive(None)


def test_a_message_that_is_too_long_is_not_read(channels: tuple[Channel, Channel]) -> None:
    """The announced length is checked before memory is taken for it."""
    ours, theirs = channels
    ours._socket.sendall(struct.pack(">Q?", MAX_MESSAGE_BYTES + 1, False))
    with pytest.raises(ConnectionError, match="more than"):
        theirs.receive(None)


@pytest.mark.parametrize(
    "kind", [k for _, k in inspect.getmembers(errors, inspect.isclass) if issubclass(k, CorellmError)]
)
def test_errors_keep_their_type(kind: type[CorellmError]) -> None:
    """Every error of the tree, with its message, status and attributes."""
    error = kind("what is wrong")
    vars(error).update((name, f"its {name}") for name in vars(error))
    fault = messages.decode_from_engine(messages.encode(Outputs(0, [Delta("0", [], True, fault=to_fault(error))])))
    assert isinstance(fault, Outputs)
    assert fault.deltas[0].fault is not None
    found = to_error(fault.deltas[0].fault)
    assert (type(found), str(found), vars(found), found.status) == (kind, "what is wrong", vars(error), kind.status)


def test_attributes_of_errors_are_plain_or_text() -> None:
    """Numbers stay numbers; what is no plain data arrives as its text, at most so long."""
    error = to_error(to_fault(ItemLimitError("too many", item=3, expected=["a"], got=torch.zeros(2000))))
    assert isinstance(error, ItemLimitError)
    assert (error.item, error.expected) == (3, "['a']")
    assert isinstance(error.got, str)
    assert len(error.got) <= 1000


def test_unknown_errors_are_failed_requests() -> None:
    """A subclass arrives as its base; what is no error of the tree runs no code and tells its type only."""

    class OwnError(ItemLimitError):
        pass

    assert type(to_error(to_fault(OwnError("x")))) is ItemLimitError
    told = str(to_error(to_fault(KeyError("secret"))))
    assert "KeyError" in told
    assert "secret" not in told
    for name in ("Any", "raised_at", "annotations", "__builtins__", "NoSuchError"):
        assert type(to_error(Fault(name, "x", {"status": 1}))) is RequestFailedError


def test_arguments_that_cannot_cross_are_refused() -> None:
    """Before a process is started."""
    with pytest.raises(ConfigError, match=r"hf_overrides=.* cannot be sent"):
        RemoteEngine(EngineConfig.from_kwargs(model="m", hf_overrides=lambda config: config))


class RecordingEngine:
    """An engine that notes what it is given."""

    use = ModelUse()

    def __init__(self) -> None:
        self.added: list[tuple[str, SamplingParams]] = []

    def add_prepared(self, request_id: str, prompt: Any, params: SamplingParams, *, arrival_time: float) -> None:
        self.added.append((request_id, params))


def test_parameters_that_cannot_be_read_fail_one_request(channels: tuple[Channel, Channel]) -> None:
    """The engine goes on, and takes the next one as it was sent."""
    near, far = channels
    engine, params = RecordingEngine(), SamplingParams(temperature=0.5, stop=["x"], seed=3)
    loop = EngineLoop(engine, far)  # type: ignore[arg-type]
    for name, given_params in (("bad", {"temperature": "hot"}), ("good", params)):
        add = messages.Add(name, [1], messages.msgspec.Raw(messages.encode(given_params)), [], None, 0, 0.0)
        loop._take(messages.encode(add), None)
    ((data, _),) = near.receive(10)
    outputs = messages.decode_from_engine(data)
    assert isinstance(outputs, Outputs)
    (delta,) = outputs.deltas
    assert (delta.request_id, delta.finished) == ("bad", True)
    assert delta.fault is not None
    assert engine.added == [("good", params)]


def test_a_result_that_is_too_long_fails_its_call(
    channels: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = channels
    loop = EngineLoop(RecordingEngine(), far)  # type: ignore[arg-type]
    monkeypatch.setattr(engine_main, "MAX_MESSAGE_BYTES", 20)
    loop._take(messages.encode(messages.Call(3, "builtins:repr", [])), None)
    ((data, _),) = near.receive(10)
    returned = messages.decode_from_engine(data)
    assert isinstance(returned, messages.Returned)
    assert returned.number == 3
    assert returned.fault is not None
    assert "builtins:repr: its result takes" in returned.fault.message


def test_parameters_of_a_use_without_a_codec_are_refused() -> None:
    with pytest.raises(ContractError, match="Fault cannot go to an engine in another process"):
        RequestCodec().in_flight(ProcessedPrompt(None, [1]), Fault("", "", {}))

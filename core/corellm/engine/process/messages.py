"""The messages between the API process and the engine's, as msgpack with a schema.

Outputs hold only what is new, so traffic grows with the number of tokens. Knows what a request and an output are;
knows no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from corellm.engine.process.faults import Fault
from corellm.hookspecs import DecoderPrompt
from corellm.multimodal.fields import MultiModalField
from corellm.multimodal.inputs import PlaceholderRange
from corellm.outputs import CompletionOutput, PositionLogprobs, RequestMetrics


class _Message(msgspec.Struct, array_like=True, tag=True):
    pass


# --- to the engine --------------------------------------------------------------------------------------------------


class Start(_Message):
    """Load a model. The first message, and the only one before `Ready`."""

    engine_args: dict[str, Any]
    """Arguments of `EngineConfig.from_kwargs`."""
    log_level: int
    log_as_json: bool
    number: int | None = None
    """Number of the engine among several of one server; None for the only one."""
    parts: int = 1
    """Into which the host's memory is divided: one is this engine's."""


class Item(msgspec.Struct, array_like=True):
    """One processed item; `tensors` has references to the memory that comes with the message."""

    modality: str
    item: int
    identifier: str
    placeholder: PlaceholderRange
    precomputed: bool
    variant: str
    tensors: dict[str, tuple[MultiModalField, Any]]


class Add(_Message):
    """Queue a request whose prompt is prepared."""

    request_id: str
    token_ids: list[int]
    params: msgspec.Raw
    """A value of the codec's `params_type`, encoded."""
    items: list[Item]
    cache_salt: str | None
    priority: int
    arrival_time: float
    """Seconds of `time.monotonic()`, which is the same in all processes."""
    decoder: DecoderPrompt | None = None
    """What the decoder begins with, where `token_ids` have an encoder of their own."""
    extra: dict[str, Any] = {}
    """What extensions read of their own keys of the prompt, by key."""


class Abort(_Message):
    """End a request now: its last delta says so."""

    request_id: str


class Call(_Message):
    """Call a function with the engine between two steps, and return its result."""

    number: int
    function: str
    """Its name: `module:function`."""
    arguments: Sequence[Any]
    """What the function is called with, after the engine."""


# --- from the engine ------------------------------------------------------------------------------------------------


class Ready(_Message):
    """The model is loaded: what preparing prompts needs to know of it, and what it has of memory."""

    vocab_size: int
    embedding_size: int
    max_model_len: int
    max_total_tokens: int
    """Longest sequence that also fits the KV cache."""
    max_num_seqs: int
    block_size: int
    num_kv_blocks: int
    tasks: tuple[str, ...]
    """Tasks that requests may have."""
    reads_pairs: bool
    eos_token_ids: frozenset[int]
    findings: dict[str, Any]
    """The adapter's, of the model."""


class Array(msgspec.Struct, array_like=True):
    """An array of float32."""

    shape: tuple[int, ...]
    data: bytes


class Delta(msgspec.Struct, array_like=True):
    """What is new of a request."""

    request_id: str
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    """With the last delta only: they would be half of all others."""
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    fault: Fault | None = None
    result: Array | None = None
    """What a use other than text generation makes of the prompt."""


class Outputs(_Message):
    """Deltas of one step. Without any, a sign of life: the engine sends at least one message a second."""

    num_steps: int
    """Finished since the start."""
    deltas: list[Delta]


class Returned(_Message):
    """The result of a `Call`."""

    number: int
    value: Any
    fault: Fault | None = None


class Failed(_Message):
    """The engine stops, or the model cannot be served. The last message."""

    fault: Fault


ToEngine = Start | Add | Abort | Call
FromEngine = Ready | Outputs | Returned | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode

"""The calls of `LLM` and `AsyncLLM` for adapters in memory: `add_lora`, `remove_lora`, `list_loras`, `pin_lora`.

Knows requests and numbers; what an engine holds, `adapters` knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.engine.maintenance import Maintenance
from corellm.errors import CorellmError, InvalidParameterError
from corellm.prompts import LORA_KEY as KEY

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine
    from corellm.engine.maintenance import AsyncMaintenance
    from corellm.frontend.input_processor import InputProcessor
    from corellm_lora.adapters import Adapters
    from corellm_lora.lora_request import LoRARequest

logger = logging.getLogger(__name__)

_Changed = tuple[bool, Mapping[int, Mapping[str, str]], Sequence[int]]
"""What a call returns; and the adapters that were added then, by number, and the numbers of pinned ones."""


def calls_of(llm: Maintenance | AsyncMaintenance) -> LoRACalls | AsyncLoRACalls:
    """Return the calls of an engine."""
    return LoRACalls(llm) if isinstance(llm, Maintenance) else AsyncLoRACalls(llm)


class LoRACalls:
    """The methods of `LLM`. Each takes or returns the number of an adapter, `LoRARequest.lora_int_id`.

    Requests need none of this: they name their adapter, which is read when it is needed.

    Args:
        llm: whose they are.
    """

    def __init__(self, llm: Maintenance) -> None:
        self._llm = llm

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Check an adapter and read it into memory, so that its first request does not wait; no other has its number.

        As `max_cpu_loras` others are needed, it is left again, and read again when it is needed.

        Returns:
            Whether it was not there by this number.

        Raises:
            InvalidParameterError: the model takes no adapters, or not this one.
        """
        read = _read(self._llm.engine.input_processor, lora_request)
        return self._llm.in_engine(_add, lora_request.lora_int_id, read)[0]

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that have it end as they began. Returns whether it was there."""
        return self._llm.in_engine(_remove, lora_id)[0]

    def list_loras(self) -> set[int]:
        """Return the numbers of the adapters that were added, and not removed."""
        return {*self._llm.in_engine(_numbers)}

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory that was added, until it is removed, whatever others are needed. Returns True.

        Raises:
            InvalidParameterError: none of this number was added, or as many are kept as may be (`max_cpu_loras`).
        """
        return self._llm.in_engine(_pin, lora_id)[0]


class AsyncLoRACalls:
    """The same of `AsyncLLM`, awaited, also where the engine is in another process, or there are several.

    One that is started again has what the others have.

    Args:
        llm: whose they are.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """As `LLM.add_lora`; steps wait while it is read."""
        read = await asyncio.to_thread(_read, self._llm.input_processor, lora_request)
        return await self._changed(_add, lora_request.lora_int_id, read)

    async def remove_lora(self, lora_id: int) -> bool:
        """As `LLM.remove_lora`."""
        return await self._changed(_remove, lora_id)

    async def list_loras(self) -> set[int]:
        """As `LLM.list_loras`."""
        return {*await self._llm.in_engine(_numbers)}

    async def pin_lora(self, lora_id: int) -> bool:
        """As `LLM.pin_lora`."""
        return await self._changed(_pin, lora_id)

    async def _changed(self, function: Callable[..., _Changed], *arguments: Any) -> bool:
        result, held, pinned = await self._llm.in_engine(function, *arguments)
        self._llm.repeat_in_new_engines(KEY, _restore, held, pinned)
        return bool(result)


def _read(processor: InputProcessor, request: LoRARequest) -> Mapping[str, Any]:
    """Return what the engine's process needs of an adapter that the model can have."""
    read: Mapping[str, Any] = processor.process({"prompt": "a"}, prompt_keys={KEY: request}).extra[KEY]
    return read


def _add(engine: LLMEngine, number: int, adapter: Mapping[str, str]) -> _Changed:
    return _as_it_is(engine, _adapters(engine).hold(number, adapter))


def _remove(engine: LLMEngine, number: int) -> _Changed:
    return _as_it_is(engine, _adapters(engine).drop(number))


def _as_it_is(engine: LLMEngine, result: bool) -> _Changed:
    adapters = _adapters(engine)
    return result, dict(adapters.held), sorted(adapters.pinned)


def _restore(engine: LLMEngine, held: Mapping[int, Mapping[str, str]], pinned: Sequence[int]) -> None:
    """Have what other engines have; what cannot be read any more is left out, as its requests tell of it."""
    adapters = _adapters(engine)
    for number in adapters.held.keys() - held.keys():
        adapters.drop(number)
    for number, adapter in held.items():
        try:
            adapters.hold(number, adapter)
            if number in pinned:
                adapters.pin(number)
        except CorellmError as error:
            logger.warning("LoRA adapter %d is not kept in an engine that was started again: %s", number, error)


def _numbers(engine: LLMEngine) -> list[int]:
    return [*_adapters(engine).held]


def _pin(engine: LLMEngine, number: int) -> _Changed:
    _adapters(engine).pin(number)
    return _as_it_is(engine, True)


def _adapters(engine: LLMEngine) -> Adapters:
    """Return the part of an engine's steps that has the adapters.

    Raises:
        InvalidParameterError: there is none.
    """
    from corellm_lora.adapters import Adapters

    found = next((part for part in engine.runner.parts if isinstance(part, Adapters)), None)
    if found is None:
        raise InvalidParameterError("the model was loaded without adapters; load it with enable_lora=True", param=KEY)
    return found

"""The calls of `LLM` and `AsyncLLM`: `sleep`, `wake_up`, `is_sleeping`, `update_weights`.

Knows arguments and weights' files; what is done with them between two steps of the engine is `sleeping`'s to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from corellm.engine.maintenance import Maintenance
from corellm.errors import InvalidParameterError
from corellm_training import sleeping
from corellm_training.weight_files import weight_directory

if TYPE_CHECKING:
    from corellm.engine.maintenance import AsyncMaintenance
    from corellm_training.weight_files import Weights


def calls_of(llm: Maintenance | AsyncMaintenance) -> TrainingCalls | AsyncTrainingCalls:
    """Return the calls of an engine."""
    return TrainingCalls(llm) if isinstance(llm, Maintenance) else AsyncTrainingCalls(llm)


class TrainingCalls:
    """The methods of `LLM` for those who train beside it.

    Args:
        llm: whose they are.
    """

    def __init__(self, llm: Maintenance) -> None:
        self._llm = llm

    def sleep(self, level: int = 1) -> None:
        """Give back the memory of the KV cache and of weights until `wake_up`; calls in other threads end first.

        The prefix cache and encoder outputs are dropped. Meanwhile `generate` and its like are refused.

        Args:
            level: 1 keeps the weights' values, a GPU's in host memory; 2 drops them: they are read again, from the
                checkpoint and from what `update_weights` was given.

        Raises:
            InvalidParameterError: another level, or level 2 of a model that does not generate.
        """
        self._llm.in_engine(sleeping.sleep, _keeps_weights(level))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End `sleep`; nothing is done to what is awake.

        Args:
            tags: `"weights"`, `"kv_cache"` for a part of it: requests run once both are awake. None for both.

        Raises:
            InvalidParameterError: another tag.
            CheckpointError: the weights cannot be read; the model goes on sleeping.
        """
        self._llm.in_engine(sleeping.wake_up, _checked(tags))

    def is_sleeping(self) -> bool:
        """Whether the model sleeps, or a part of it."""
        return self._llm.engine.is_sleeping

    def update_weights(self, weights: Weights) -> None:
        """Give the model other weights, all or some; all else stays, as the other parts of fused layers.

        Results are those of a checkpoint with these weights, bit for bit. Names and shapes are checked before any
        weight is changed. The prefix cache and encoder outputs are dropped. While the weights sleep, the new ones are
        kept in files, for `wake_up` to read: several calls then cost one load.

        Args:
            weights: tensors by the checkpoint's names, in a mapping or as pairs, which are copied; or a directory with
                safetensors, whose files must stay as they are until others take their place, or the model is closed.

        Raises:
            InvalidParameterError: which weight does not fit; nothing was changed.
            CheckpointError: a file cannot be read, or the model cannot be made of these weights; nothing was changed.
        """
        with weight_directory(weights) as (directory, is_temporary):
            self._llm.in_engine(sleeping.update_weights, str(directory), is_temporary)


class AsyncTrainingCalls:
    """The same of `AsyncLLM`, awaited, also where the engine is in another process.

    Args:
        llm: whose they are.
    """

    def __init__(self, llm: AsyncMaintenance) -> None:
        self._llm = llm

    async def sleep(self, level: int = 1) -> None:
        """Sleep as `LLM.sleep`, but requests wait: running ones go on after `wake_up`, and new ones are taken."""
        await self._llm.in_engine(sleeping.sleep, _keeps_weights(level))

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End `sleep`, as `LLM.wake_up`."""
        await self._llm.in_engine(sleeping.wake_up, _checked(tags))

    async def is_sleeping(self) -> bool:
        """Return whether the model sleeps, or a part of it."""
        return await self._llm.in_engine(sleeping.is_sleeping)

    async def update_weights(self, weights: Weights) -> None:
        """Give other weights, as `LLM.update_weights`; requests go on with them, from the tokens that they have."""
        with ExitStack() as after:
            directory, is_temporary = await asyncio.to_thread(after.enter_context, weight_directory(weights))
            await self._llm.in_engine(sleeping.update_weights, str(directory), is_temporary)


def _keeps_weights(level: int) -> bool:
    if level not in (1, 2) or isinstance(level, bool):
        raise InvalidParameterError(f"level must be 1 (weights are kept) or 2, got {level!r:.100}", param="level")
    return level == 1


def _checked(tags: Sequence[str] | None) -> list[str]:
    """Return what is to wake."""
    given = sleeping.TAGS if tags is None else (tags,) if isinstance(tags, str) else tags
    wanted = [*given] if isinstance(given, Iterable) else [given]
    if any(tag not in sleeping.TAGS for tag in wanted):
        raise InvalidParameterError(f"tags must be of {', '.join(sleeping.TAGS)}; got {tags!r:.100}", param="tags")
    return wanted

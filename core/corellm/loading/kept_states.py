"""Which modules of a decoder keep a state of each sequence; an extension runs them.

Knows names in code; imports no transformers, so that models without such modules pay nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from corellm.errors import MissingExtraError, install_hint
from corellm.plugin.extensions import call_extensions

if TYPE_CHECKING:
    import torch

    from corellm.scheduling.block_pool import BlockPool
    from corellm.scheduling.block_user import BlockUser
    from corellm.worker.parts.step_part import StepPart

_UPDATES = frozenset({"update_conv_state", "update_recurrent_state"})
"""How a module hands its new state to transformers' Cache."""


class KeptStates(Protocol):
    """What `offer_kept_states` returns for the modules of one decoder. Methods are in the order of their calls."""

    layers: Set[int]
    """The decoder's layers that they are in."""
    uncached: str
    """Why no prefix can be cached; empty if it can. Known after `part`."""
    most_whole: int
    """Most tokens of a prompt that must be computed in one step. Known after `part`."""

    def probed(self) -> AbstractContextManager[None]:
        """Return what surrounds the decoder's first run."""
        ...

    def part(
        self,
        decoder: nn.Module,
        max_num_seqs: int,
        most_drafts: int,
        dtype: torch.dtype,
        device: torch.device,
        num_snapshots: int = 0,
    ) -> StepPart:
        """Return what runs the modules in a step, after the memory of all states, and of snapshots, is allocated.

        Raises:
            CheckpointError: a module cannot be run in chunks; says why.
        """
        ...

    def block_user(self, pool: BlockPool, block_size: int) -> BlockUser | None:
        """Return what decides which states are kept for the prefix cache; None if nothing is to be decided."""
        ...


def find_keeping(decoder: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a decoder that keep a state through transformers' Cache, by name."""
    classes = {type(module) for module in decoder.modules()}
    keeping = {cls for cls in classes if _keeps_state(cls)}
    return {name: module for name, module in decoder.named_modules() if type(module) in keeping}


def _keeps_state(cls: type[nn.Module]) -> bool:
    own = cls.__mro__[: cls.__mro__.index(nn.Module)]
    functions = (inspect.unwrap(value) for base in own for value in vars(base).values() if callable(value))
    return any(_UPDATES & set(code.co_names) for f in functions if (code := getattr(f, "__code__", None)) is not None)


def kept_states(modules: Mapping[str, nn.Module]) -> KeptStates | None:
    """Return what runs modules that keep a state; None if there are none.

    Raises:
        MissingExtraError: no extension does.
    """
    if not modules:
        return None
    found: KeptStates | None = next(
        (o for _, o in call_extensions("offer_kept_states", _is_offer, modules=modules)), None
    )
    if found is None:
        name, module = next(iter(modules.items()))
        raise MissingExtraError(
            f"{type(module).__name__} ({name}) keeps a state, which needs {install_hint('recurrent')}"
        )
    return found


def _is_offer(result: Any) -> bool:
    return callable(getattr(result, "part", None))

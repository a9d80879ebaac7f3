"""Functions that change logits: the kinds that there are, and one way to call them all.

A processor is one of these:

    function(output_token_ids, logits) -> logits                       # lists of token ids; logits: [vocab] float32
    function(prompt_token_ids, output_token_ids, logits) -> logits
    transformers.LogitsProcessor                                       # called with prompt and output as one tensor
    BatchedLogitsProcessor                                             # called with rows of several sequences at once

The contract, which `corellm_testing.check_logits_processor` proves: what comes back has the shape of the logits, is on
their device and floating, has no NaN and no infinity but minus infinity, for tokens that may not come, and one token at
least may. It follows from the arguments alone: from no earlier call, as a sequence may be computed again, and from no
other row of a batch. The arguments are the processor's to change, but for the token ids.

Knows how processors are called and what they may return; knows neither requests nor batches.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from corellm.errors import InvalidParameterError, RequestFailedError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SequenceTokens:
    """The tokens of a sequence before the one to be chosen."""

    prompt_token_ids: Sequence[int]
    """Placeholders expanded."""
    output_token_ids: Sequence[int]


class BatchedLogitsProcessor(ABC):
    """Changes the logits of several sequences at once: of all in a step whose requests have this object."""

    @abstractmethod
    def __call__(self, logits: Tensor, sequences: Sequence[SequenceTokens]) -> Tensor:
        """Return the changed logits.

        Args:
            logits: `[num_rows, vocab]` float32; may be written to.
            sequences: one per row.
        """


class Processor:
    """A processor of any kind.

    Args:
        target: the processor.
        name: what messages call it.

    Raises:
        InvalidParameterError: it takes other arguments than a processor does.
    """

    def __init__(self, target: Any, name: str = "") -> None:
        self.target = target
        self.name = name or getattr(target, "__qualname__", type(target).__qualname__)
        self._call = _batched(target, self.name)

    def __call__(self, logits: Tensor, sequences: Sequence[SequenceTokens]) -> Tensor:
        """Return the changed logits of some rows.

        Args:
            logits: `[num_rows, vocab]` float32; not changed.
            sequences: one per row.

        Raises:
            RequestFailedError: the result is none that a processor may return.
            Exception: of the processor.
        """
        returned = self._call(logits.clone(), sequences)
        self._check(returned, logits)
        changed: Tensor = returned.to(logits.dtype)
        return changed

    def _check(self, changed: Any, logits: Tensor) -> None:
        if not isinstance(changed, type(logits)):
            told = "; return the logits, also where they were changed in place" if changed is None else ""
            raise RequestFailedError(f"{self.name} must return a tensor, not {type(changed).__name__}{told}")
        same_place = changed.shape == logits.shape and changed.device == logits.device
        if not same_place or not changed.is_floating_point():
            raise RequestFailedError(
                f"{self.name} must return logits {list(logits.shape)} on {logits.device}, floating; it returned "
                f"{list(changed.shape)} on {changed.device}, {changed.dtype}"
            )
        highest = changed.amax(dim=-1)  # NaN where there is one
        if not bool(highest.isfinite().all()):
            some = highest[~highest.isfinite()][0].item()
            told = "leaves no token that may be generated" if some == -math.inf else "gives NaN or infinity"
            raise RequestFailedError(f"{self.name} {told}")


def _batched(target: Any, name: str) -> Callable[[Tensor, Sequence[SequenceTokens]], Any]:
    """Return one way to call a processor of any kind."""
    if isinstance(target, BatchedLogitsProcessor):
        return target
    if _is_of_transformers(target):
        return partial(_call_with_tensors, target)
    return partial(_call_with_lists, target, takes_prompt=_num_arguments(target, name) == 3)


def _call_with_tensors(target: Any, logits: Tensor, sequences: Sequence[SequenceTokens]) -> Any:
    import torch

    rows = []
    for row, one in zip(logits, sequences, strict=True):
        ids = torch.tensor([[*one.prompt_token_ids, *one.output_token_ids]], device=logits.device)
        rows.append(target(ids, row[None]))
    return _joined(rows, torch.cat)


def _call_with_lists(target: Any, logits: Tensor, sequences: Sequence[SequenceTokens], *, takes_prompt: bool) -> Any:
    import torch

    rows = []
    for row, one in zip(logits, sequences, strict=True):
        prompt = [list(one.prompt_token_ids)] if takes_prompt else []
        rows.append(target(*prompt, list(one.output_token_ids), row))
    return _joined(rows, torch.stack)


def _joined(rows: list[Any], join: Callable[[list[Tensor]], Tensor]) -> Any:
    """Return rows in one tensor; of one row, whatever it is."""
    return join(rows) if all(hasattr(row, "unsqueeze") for row in rows) else rows[0]


def _is_of_transformers(target: Any) -> bool:
    """Whether a processor is one of transformers, which is not imported for it."""
    return any(kind.__module__ == "transformers.generation.logits_process" for kind in type(target).__mro__)


def _num_arguments(target: Any, name: str) -> int:
    try:
        signature = inspect.signature(target)
        for count in (2, 3):
            try:
                signature.bind(*[None] * count)
            except TypeError:
                continue
            return count
    except (TypeError, ValueError) as error:
        told: object = error
    else:
        told = signature
    raise InvalidParameterError(
        f"logits_processors: {name} must take (output_token_ids, logits), or (prompt_token_ids, output_token_ids, "
        f"logits); it takes {told}",
        param="logits_processors",
    )

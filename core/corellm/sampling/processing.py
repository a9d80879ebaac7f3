"""What changes a step's logits by functions of users and extensions: the interface; an extension has what applies them.

Knows which sequences have such functions; knows none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from corellm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.sampling.sampling_state import SamplingState


class LogitsProcessing(Protocol):
    """What an extension makes of `SamplingParams.logits_processors`, for one loaded model."""

    def check(self, params: SamplingParams) -> None:
        """Return if a request's processors can be applied. Safe to call from several threads.

        Raises:
            InvalidParameterError: why they cannot.
        """
        ...

    def __call__(self, logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
        """Return a step's logits, changed in the rows whose state has this as its `processing`.

        Args:
            logits: `[num_rows, vocab]` of the model, of any float type; not to be changed.
            states: one per row. A row whose processors fail gets its state's `failure`, and minus infinity.

        Returns:
            `[num_rows, vocab]` float32; the other rows have the same values as before.
        """
        ...


def is_processing(offered: Any) -> bool:
    """Whether an extension's offer is one."""
    return callable(offered) and callable(getattr(offered, "check", None))

"""Drafts of the part that proposes some, checked: what is wrong with them must not cost a request anything.

Knows what drafts must be; knows neither how they are made nor how they are verified.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from corellm.errors import ConfigError
from corellm.system.devices import for_inference
from corellm.worker.parts.step_part import StepPart

logger = logging.getLogger(__name__)


def proposals_of(parts: Sequence[StepPart], device: torch.device, vocab_size: int) -> Proposals | None:
    """Return what makes drafts of sampled tokens; None if no part proposes any.

    Args:
        parts: of a worker.
        device: of its model.
        vocab_size: drafts from the first token on that is not below it are left out.

    Raises:
        ConfigError: two parts propose, or another cannot take tokens back.
    """
    proposing = [part for part in parts if part.most_drafts]
    if not proposing:
        return None
    names = " and ".join(type(part).__name__ for part in proposing)
    if len(proposing) > 1:
        raise ConfigError(f"{names} all propose drafts, and a model takes those of one part; uninstall the others")
    if reasons := [part.irreversible for part in parts if part.irreversible]:
        raise ConfigError(
            f"{names} drafts tokens, and this model cannot take back those that were wrong: {reasons[0]}; load it "
            "without drafts"
        )
    return Proposals(proposing[0], device, vocab_size)


class Proposals:
    """Asks a part for drafts, until it fails.

    Args:
        part, device, vocab_size: see `proposals_of`.

    Attributes:
        is_on: whether the part has not failed.
    """

    def __init__(self, part: StepPart, device: torch.device, vocab_size: int) -> None:
        self.device, self._part, self._vocab_size = device, part, vocab_size
        self.is_on = True

    @property
    def rests(self) -> bool:
        """Whether there will hardly be drafts for now."""
        return not self.is_on or self._part.rests

    @for_inference
    def __call__(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """Return drafts that the next step can check."""
        try:
            return {name: self._usable(drafts) for name, drafts in self._part.propose(sampled).items()}
        except Exception:
            self.is_on = False
            logger.warning("%s failed; there are no drafts any more", type(self._part).__name__, exc_info=True)
            return {}

    def _usable(self, drafts: Sequence[int]) -> list[int]:
        ids = [int(token) for token in drafts[: self._part.most_drafts]]
        wrong = next((i for i, token in enumerate(ids) if not 0 <= token < self._vocab_size), len(ids))
        return ids[:wrong]

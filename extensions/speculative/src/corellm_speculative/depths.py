"""How far to draft each sequence with a draft model, so that a step as a whole says most tokens per second.

Knows chances and seconds; knows neither tokens nor models. One more draft for some sequences takes a step of the draft
model, and a row each of the model's own; what they gain falls with each further draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from corellm_speculative.acceptance import Acceptance
from corellm_speculative.costs import MARGIN, StepCosts


def plan_depths(
    acceptances: Sequence[Acceptance], most: Sequence[int], steps: StepCosts, drafts: StepCosts
) -> list[int]:
    """Return the number of drafts of each sequence.

    Args:
        acceptances: how often the first, second, ... draft of each was right, if those before it were.
        most: the most drafts of each.
        steps: of the model.
        drafts: of the draft model.
    """
    numbers, chances = [0] * len(most), [1.0] * len(most)
    gained, spent = float(len(most)), steps.seconds(len(most))
    is_known = spent > 0 and drafts.seconds(1) > 0
    left = [i for i, room in enumerate(most) if room]
    while left:
        for i in left:
            chances[i] *= acceptances[i].chance(numbers[i] + 1)
        if is_known:
            rate = MARGIN * gained / spent
            left = [i for i in left if chances[i] >= rate * (steps.row + drafts.row)]
            gain, cost = sum(chances[i] for i in left), drafts.seconds(len(left)) + steps.row * len(left)
            if gain < rate * cost:
                break
            gained, spent = gained + gain, spent + cost
        for i in left:
            numbers[i] += 1
        left = [i for i in left if numbers[i] < most[i]]
    return numbers


def can_pay(num_drafts: int, num_sequences: int, steps: StepCosts, drafts: StepCosts) -> bool:
    """Return whether a draft for some of the sequences of a step would pay if all were right."""
    cost = drafts.seconds(num_drafts) + steps.row * num_drafts
    return num_drafts * steps.seconds(num_sequences) >= MARGIN * num_sequences * cost

"""Which states of its items each token of a prompt sees, as the adapter states it (`get_visible_states`).

Most models have none. Knows the hook and numbers; what states mean for scheduling is in `item_states`.
"""

from __future__ import annotations

from collections.abc import Sequence

from corellm.errors import ContractError
from corellm.multimodal.hook_results import adapter_errors
from corellm.multimodal.inputs import MultiModalFeature
from corellm.plugin.hook_callers import HookCallers
from corellm.scheduling.item_states import VisibleStates


def visible_states_of(
    hooks: HookCallers, token_ids: Sequence[int], features: Sequence[MultiModalFeature]
) -> tuple[VisibleStates, ...]:
    """Return which states tokens of a prompt with items see, by the first token that does.

    Raises:
        ContractError: an item's placeholder has no states, or the hook names other tokens or states than there are.
        ProcessingError: the hook raised.
    """
    if without := next((feature for feature in features if feature.placeholder.num_states is None), None):
        raise ContractError(
            f"{without.modality} {without.item}: the decoder attends to states of items (get_visible_states), and "
            f"get_prompt_updates gives this one none; state PromptUpdateDetails.num_states"
        )
    with adapter_errors("get_visible_states"):
        given = hooks.get_visible_states(token_ids=token_ids, mm_features=features)
        visible = tuple((int(token), int(start), int(end)) for token, start, end in given)
    tokens, num_states = [token for token, _, _ in visible], sum(feature.placeholder.num_embeds for feature in features)
    in_order = all(a < b for a, b in zip([-1, *tokens], [*tokens, len(token_ids)], strict=True))
    if not in_order or not all(0 <= start <= end <= num_states for _, start, end in visible):
        raise ContractError(
            f"get_visible_states must return (token, start, end), by token, of the prompt's {len(token_ids)} tokens "
            f"and its items' {num_states} states, got {list(visible)!r:.200}"
        )
    return visible

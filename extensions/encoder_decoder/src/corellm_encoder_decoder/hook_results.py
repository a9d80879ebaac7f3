"""What an adapter states of a prompt where the decoder attends to states, checked.

Knows hooks, tokens and items; does not know what becomes of them in scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from corellm.errors import ContractError, PromptTooLongError
from corellm.hookspecs import DecoderPrompt
from corellm.multimodal.hook_results import adapter_errors
from corellm.multimodal.inputs import MultiModalFeature
from corellm.plugin.hook_callers import HookCallers
from corellm_encoder_decoder.item_prompt import VisibleStates


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


def decoder_prompt_of(
    hooks: HookCallers,
    token_ids: list[int],
    features: Sequence[MultiModalFeature],
    max_states: int,
    known: Callable[[list[int]], list[int]],
) -> DecoderPrompt:
    """Return what the decoder starts from, and how many states its encoder makes of the prompt.

    Args:
        hooks: the model's.
        token_ids: of the prompt, placeholders expanded.
        features: its items.
        max_states: most states of the encoder.
        known: returns token ids that the model knows, and refuses others.

    Raises:
        ContractError: the hook's result is not what it must be.
        ProcessingError: the hook raised.
        PromptTooLongError: the encoder has fewer positions than the prompt takes.
    """
    with adapter_errors("get_decoder_prompt"):
        decoder = hooks.get_decoder_prompt(token_ids=token_ids, mm_features=features)
    if not isinstance(decoder, DecoderPrompt) or not decoder.token_ids:
        raise ContractError(f"get_decoder_prompt must return a DecoderPrompt with a token, got {decoder!r:.100}")
    num_states = len(token_ids) if decoder.num_states is None else decoder.num_states
    if not isinstance(num_states, int) or num_states < 1:
        raise ContractError(f"get_decoder_prompt must state one state or more, got num_states={num_states!r:.100}")
    if num_states > max_states:
        of_items = sum(feature.placeholder.length for feature in features)
        told = f", {of_items} of them for its items" if of_items else ""
        raise PromptTooLongError(
            f"the prompt has {len(token_ids)} tokens{told}, from which the encoder would make {num_states} states; "
            f"it has {max_states} positions: shorten the prompt, or send fewer or smaller items"
        )
    if not all(decoder.choices):
        raise ContractError("get_decoder_prompt must give each place of choices a token")
    return replace(decoder, token_ids=known(list(decoder.token_ids)), num_states=num_states)

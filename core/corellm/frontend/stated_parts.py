"""What an adapter states of a prompt beside its tokens, checked; and the part of a request that this makes.

Spans whose tokens see each other (`get_bidirectional_spans`), states of items that tokens see (`get_visible_states`),
what the decoder behind an encoder starts from (`get_decoder_prompt`); most models have none. Knows hooks and positions;
what the parts mean for scheduling is in `corellm.scheduling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from corellm.errors import ContractError, InvalidParameterError, PromptTooLongError
from corellm.hookspecs import DecoderPrompt
from corellm.multimodal.hook_results import adapter_errors
from corellm.multimodal.inputs import MultiModalFeature
from corellm.plugin.hook_callers import HookCallers, adapter_implements
from corellm.sampling_params import SamplingParams
from corellm.scheduling.encoder_prompt import EncoderPrompt
from corellm.scheduling.request_part import PLAIN, RequestPart
from corellm.scheduling.spans import Span, Spans

if TYPE_CHECKING:
    from corellm.scheduling.item_states import VisibleStates


def states_parts(hooks: HookCallers) -> bool:
    """Whether prompts of a model may have parts; `part_of_prompt` is for such a model."""
    hooked = adapter_implements(hooks.get_visible_states) or adapter_implements(hooks.get_bidirectional_spans)
    return hooked or hooks.get_max_encoder_states() is not None


def part_of_prompt(
    hooks: HookCallers,
    token_ids: list[int],
    features: Sequence[MultiModalFeature],
    cache_salt: str | None,
    decoder: DecoderPrompt | None,
) -> RequestPart:
    """Return the part of a request with this prompt.

    Args:
        hooks: the model's.
        token_ids: placeholders expanded.
        features: its items.
        cache_salt: of the request.
        decoder: from `decoder_prompt_of`; None for a model that is only a decoder.

    Raises:
        ContractError, ProcessingError: the adapter is at fault.
    """
    if decoder is not None:
        num_states = len(token_ids) if decoder.num_states is None else decoder.num_states
        return EncoderPrompt.of(token_ids, num_states, features, cache_salt, (decoder.choices, decoder.not_first))
    if features and adapter_implements(hooks.get_visible_states):
        from corellm.scheduling.item_states import ItemStates

        return ItemStates.of_items(features, visible_states_of(hooks, token_ids, features), cache_salt)
    spans = spans_of(hooks, token_ids, features)
    return Spans(spans) if spans else PLAIN


def spans_of(hooks: HookCallers, token_ids: Sequence[int], features: Sequence[MultiModalFeature]) -> tuple[Span, ...]:
    """Return the spans of a prompt, in order; none where the adapter names none.

    Raises:
        ContractError: they overlap, or lie outside of the prompt.
        ProcessingError: the hook raised.
    """
    if not adapter_implements(hooks.get_bidirectional_spans):
        return ()
    with adapter_errors("get_bidirectional_spans"):
        given = hooks.get_bidirectional_spans(token_ids=token_ids, mm_features=features) or ()
        spans = tuple(sorted((int(start), int(end)) for start, end in given))
    borders = [0, *(border for span in spans for border in span), len(token_ids)]
    if borders != sorted(borders):
        raise ContractError(
            f"get_bidirectional_spans must return spans [start, end) of the prompt's {len(token_ids)} tokens that do "
            f"not overlap, got {spans}"
        )
    return tuple((start, end) for start, end in spans if end - start > 1)


def longest_span(
    hooks: HookCallers, prompts: Sequence[Sequence[int]], features: Sequence[MultiModalFeature], max_len: int
) -> int:
    """Return the tokens of the longest span that a prompt of `max_len` tokens may have, 0 for none.

    Args:
        hooks: the model's.
        prompts: one for each of the largest items.
        features: those items.
        max_len: the longest prompt. To find models whose whole prompt is one span, text is put behind each item.
    """
    known = [(prompt, [feature]) for prompt, feature in zip(prompts, features, strict=True)]
    longest = 0
    for prompt, items in known or [([], [])]:
        tokens = [*prompt, *[0] * (max_len - len(prompt))]
        longest = max(longest, *(end - start for start, end in spans_of(hooks, tokens, items)), 0)
    return min(longest, max_len)


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


def refuse_for_encoder(params: SamplingParams) -> None:
    """Refuse parameters that have no meaning where an encoder reads the prompt.

    Raises:
        InvalidParameterError: names the parameter.
    """
    if params.truncate_prompt_tokens is not None:
        raise InvalidParameterError(
            "truncate_prompt_tokens: the encoder of an encoder-decoder reads whole prompts only; shorten the prompt",
            param="truncate_prompt_tokens",
        )
    if params.prompt_logprobs is not None:
        raise InvalidParameterError(
            "prompt_logprobs: the prompt of an encoder-decoder is read by its encoder, which gives tokens no "
            "probability; leave it out",
            param="prompt_logprobs",
        )

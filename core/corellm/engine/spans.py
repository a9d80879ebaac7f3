"""Spans of a prompt whose tokens see each other, and the chunks that they allow: none of them is ever cut.

An adapter says which spans a prompt has (`get_bidirectional_spans`); most models have none. Knows positions; knows
neither masks nor tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from corellm.errors import ContractError
from corellm.multimodal.hook_results import adapter_errors
from corellm.multimodal.inputs import MultiModalFeature
from corellm.plugin.hook_callers import HookCallers, adapter_implements

Span = tuple[int, int]
"""`[start, end)` of a prompt."""


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


def without_cutting(spans: Sequence[Span], start: int, num_tokens: int, *, may_extend: bool) -> int:
    """Return how many tokens from `start` on make a chunk that cuts no span: at most `num_tokens`, or one whole span.

    Args:
        spans: of the prompt, in order.
        start: of the chunk; may lie inside a span whose beginning was found in the prefix cache.
        num_tokens: that could run.
        may_extend: whether the chunk may take more tokens than that, to the end of a span that it begins in. A span
            longer than a step's budget could not run otherwise.
    """
    stop = start + num_tokens
    index = bisect_right(spans, stop, key=lambda span: span[1])  # the first that ends behind the chunk
    if num_tokens == 0 or index == len(spans) or spans[index][0] >= stop:
        return num_tokens
    first, end = spans[index]
    if first > start:
        return first - start
    return end - start if may_extend else 0

"""What an adapter states of a prompt beside its tokens, checked; and the part of a request that this makes.

Spans whose tokens see each other (`get_bidirectional_spans`) are known here; states that a decoder attends to are an
extension's matter. Most models have neither. What spans mean for scheduling is in `corellm.scheduling.spans`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corellm.errors import ContractError
from corellm.multimodal.hook_results import adapter_errors
from corellm.multimodal.inputs import MultiModalFeature
from corellm.plugin.hook_callers import HookCallers, adapter_implements
from corellm.scheduling.request_part import PLAIN, RequestPart
from corellm.scheduling.spans import Span, Spans

if TYPE_CHECKING:
    from corellm.frontend.input_processor import ProcessedPrompt
    from corellm.loading.attended_states import AttendedStates


def states_parts(hooks: HookCallers, attended: AttendedStates | None) -> bool:
    """Whether prompts of a model may have parts; `part_of_prompt` is for such a model."""
    return attended is not None or adapter_implements(hooks.get_bidirectional_spans)


def part_of_prompt(hooks: HookCallers, attended: AttendedStates | None, prompt: ProcessedPrompt) -> RequestPart:
    """Return the part of a request with this prompt.

    Raises:
        ContractError, ProcessingError: the adapter is at fault.
    """
    part = PLAIN if attended is None else attended.part_of(prompt)
    if part is PLAIN and (spans := spans_of(hooks, prompt.token_ids, prompt.features)):
        return Spans(spans)
    return part


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


def longest_whole(
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

"""Cuts a prompt to its last tokens: `truncate_prompt_tokens`.

Knows tokens and the positions of items among them; knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from corellm.errors import InvalidParameterError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.sampling_params import SamplingParams

_NAME = "truncate_prompt_tokens"


def truncated(prompt: ProcessedPrompt, params: SamplingParams, max_total_tokens: int) -> ProcessedPrompt:
    """Return the prompt with the last tokens that `params` keep; `prompt` is not changed.

    Args:
        prompt: items wholly before the kept tokens are left out.
        params: of the request.
        max_total_tokens: longest sequence, prompt and output together.

    Raises:
        InvalidParameterError: an item would be cut, or `max_tokens` leaves no room for any prompt.
    """
    kept = params.truncate_prompt_tokens
    if kept == -1:
        kept = max_total_tokens - (params.max_tokens or 1)
        if kept < 1:
            raise InvalidParameterError(
                f"{_NAME}=-1 leaves room for max_tokens={params.max_tokens}, but prompt and output together have at "
                f"most {max_total_tokens} tokens; lower max_tokens",
                param="max_tokens",
            )
    if kept is None or kept >= len(prompt.token_ids):
        return prompt
    length = len(prompt.token_ids)
    start = length - kept
    refuse_cut_items(prompt, start, lambda border: length - border)
    features = [
        replace(feature, placeholder=replace(feature.placeholder, offset=feature.placeholder.offset - start))
        for feature in prompt.features
        if feature.placeholder.offset >= start
    ]
    return replace(prompt, token_ids=prompt.token_ids[start:], features=features)


def refuse_cut_items(prompt: ProcessedPrompt, border: int, kept_at: Callable[[int], int]) -> None:
    """Do nothing if the border between kept and dropped tokens is within no item; `kept_at(border)` tokens are kept.

    Raises:
        InvalidParameterError: it is; says how many to keep.
    """
    for feature in prompt.features:
        where = feature.placeholder
        if where.offset < border < where.end:
            fewer, more = sorted((kept_at(where.offset), kept_at(where.end)))
            raise InvalidParameterError(
                f"{_NAME}={kept_at(border)} would cut {feature.modality} {feature.item}, which has the prompt's tokens "
                f"{where.offset} to {where.end - 1} of {len(prompt.token_ids)}; keep at least {more} tokens, or at "
                f"most {fewer}",
                param=_NAME,
            )

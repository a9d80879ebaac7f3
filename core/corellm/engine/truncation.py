"""Cuts a prompt to its last tokens, or to its first for pooling: `truncate_prompt_tokens`.

Knows tokens and the positions of items among them; knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from corellm.engine.input_processor import ProcessedPrompt
from corellm.engine.text_pairs import truncated_pair
from corellm.errors import InvalidParameterError
from corellm.pooling_params import PoolingParams
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
    if kept is not None and prompt.decoder is not None:
        raise InvalidParameterError(
            f"{_NAME}: the encoder of an encoder-decoder reads whole prompts only; shorten the prompt", param=_NAME
        )
    if params.prompt_logprobs is not None and prompt.decoder is not None:
        raise InvalidParameterError(
            "prompt_logprobs: the prompt of an encoder-decoder is read by its encoder, which gives tokens no "
            "probability; leave it out",
            param="prompt_logprobs",
        )
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
    _refuse_cut_items(prompt, start, lambda border: length - border)
    features = [
        replace(feature, placeholder=replace(feature.placeholder, offset=feature.placeholder.offset - start))
        for feature in prompt.features
        if feature.placeholder.offset >= start
    ]
    return replace(prompt, token_ids=prompt.token_ids[start:], features=features)


def ready_to_pool(
    prompt: ProcessedPrompt, params: PoolingParams, max_total_tokens: int, end_tokens: list[int]
) -> tuple[ProcessedPrompt, PoolingParams]:
    """Return the prompt that the model reads, and the parameters with what its worker must know of it.

    It has the tokens that `params` keep, and those that fill it up, of a query of a ColBERT model.

    Args:
        prompt, max_total_tokens, end_tokens: as of `truncated_right`.
        params: of the request.

    Raises:
        InvalidParameterError: an item would be cut, or there is not one type for each token.
        PromptTooLongError: a query or a document of a ColBERT model has more tokens than such a text may have.
    """
    prompt = truncated_right(prompt, params.truncate_prompt_tokens, max_total_tokens, end_tokens)
    types, length = params.token_type_ids, len(prompt.token_ids)
    if prompt.pair is not None:
        return prompt, replace(params, token_type_ids=prompt.pair.types)
    if types is not None and len(types) != length:
        raise InvalidParameterError(
            f"token_type_ids has {len(types)} types, and the prompt {length} tokens; give one for each",
            param="token_type_ids",
        )
    if prompt.side is None:
        return prompt, params
    filled = prompt.side.filled(prompt.token_ids)
    more = len(filled) - length
    types = None if types is None else [*types, *[0] * more]
    params = replace(
        params, side=prompt.side.name, num_filled=more, token_type_ids=types, truncate_prompt_tokens=None
    )  # fmt: skip
    return replace(prompt, token_ids=filled, side=None), params


def truncated_right(
    prompt: ProcessedPrompt, kept: int | None, max_total_tokens: int, end_tokens: list[int]
) -> ProcessedPrompt:
    """Return the prompt with its first tokens, for pooling; `prompt` is not changed.

    Args:
        prompt: items wholly after the kept tokens are left out.
        kept: how many tokens; -1 for as many as fit, None for all.
        max_total_tokens: longest prompt.
        end_tokens: special tokens that the tokenizer puts after texts; a prompt that ends with them still does, because
            models that pool the last token were trained on them.

    Raises:
        InvalidParameterError: an item would be cut.
    """
    kept = prompt.limit(max_total_tokens) if kept == -1 else kept
    if kept is None or kept >= len(prompt.token_ids):
        return prompt
    if prompt.pair is not None:
        token_ids, pair = truncated_pair(prompt.token_ids, prompt.pair, kept)
        return replace(prompt, token_ids=token_ids, pair=pair)
    has_end = bool(end_tokens) and prompt.token_ids[-len(end_tokens) :] == end_tokens and kept > len(end_tokens)
    end = end_tokens if has_end else []
    stop = kept - len(end)
    _refuse_cut_items(prompt, stop, lambda border: border + len(end))
    features = [feature for feature in prompt.features if feature.placeholder.end <= stop]
    return replace(prompt, token_ids=prompt.token_ids[:stop] + end, features=features)


def _refuse_cut_items(prompt: ProcessedPrompt, border: int, kept_at: Callable[[int], int]) -> None:
    """Raise if the border between kept and dropped tokens is within an item; `kept_at(border)` tokens are kept."""
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

"""Cuts a prompt to its first tokens, for pooling, and fills queries of ColBERT models up.

Knows tokens and the positions of items among them; knows no tokenizer.
"""

from __future__ import annotations

from dataclasses import replace

from corellm.errors import InvalidParameterError
from corellm.frontend.truncation import refuse_cut_items
from corellm_pooling.inputs import PooledPrompt
from corellm_pooling.params import PoolingParams
from corellm_pooling.text_pairs import truncated_pair


def ready_to_pool(
    prompt: PooledPrompt, params: PoolingParams, max_total_tokens: int, end_tokens: list[int]
) -> tuple[PooledPrompt, PoolingParams]:
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
    prompt: PooledPrompt, kept: int | None, max_total_tokens: int, end_tokens: list[int]
) -> PooledPrompt:
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
    refuse_cut_items(prompt, stop, lambda border: border + len(end))
    features = [feature for feature in prompt.features if feature.placeholder.end <= stop]
    return replace(prompt, token_ids=prompt.token_ids[:stop] + end, features=features)

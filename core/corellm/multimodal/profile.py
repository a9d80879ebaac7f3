"""The sizes of a model's largest items, measured on the dummy items of its adapter.

Memory is planned with them. Knows the hooks of dummy items, placeholders and counts; does not know how items are
processed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from corellm.errors import ContractError, CorellmError, MissingExtraError
from corellm.multimodal.hook_results import adapter_errors, call_hook
from corellm.multimodal.inputs import MultiModalFeature
from corellm.multimodal.items import MultiModalItems
from corellm.multimodal.parsing import DataParser
from corellm.multimodal.prompt_updates import PromptUpdate, replaced_targets, targets_without
from corellm.plugin.hook_callers import HookCallers, adapter_implements

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DummyProfile:
    """Tokens and embeddings of the largest item of each modality, measured on the adapter's dummy inputs."""

    max_tokens: Mapping[str, int]
    """`{modality: placeholder tokens}`."""
    max_embeds: Mapping[str, int]
    """`{modality: embeddings}`, never more than the tokens, unless they are states."""
    placeholder_token_ids: Mapping[int, str]
    """Tokens that take embeddings, and their modality: never in a prompt outside a placeholder."""
    features: Sequence[MultiModalFeature]
    """The dummy items themselves, one per modality."""
    prompts: Sequence[Sequence[int]]
    """The expanded prompt of each dummy item."""
    targets: Sequence[PromptUpdate]
    """Updates whose targets hold none of these tokens, and stand for an item all the same: a prompt of text alone must
    not hold them. Empty if the adapter cannot name them without an item."""
    replaced_token_ids: Collection[int]
    """Tokens that are such a target by themselves: none reaches the model, so it need not have an embedding of them."""
    marks: frozenset[int]
    """Tokens without which a prompt has neither a placeholder nor such a target."""


def measure_profile(
    hooks: HookCallers,
    limits: Mapping[str, int | None],
    parser: DataParser,
    expand: Callable[[str, MultiModalItems], tuple[list[int], MultiModalFeature]],
    tokenize: Callable[[str], Sequence[int]],
    seq_len: int,
    options: Mapping[str, Mapping[str, int]],
) -> DummyProfile:
    """Process one dummy item of each modality.

    Args:
        hooks: the model's hook callers.
        limits: most items per prompt, by modality.
        parser: the model's.
        expand: `(dummy text, dummy item)` to the expanded prompt and its one item.
        tokenize: text to token ids, without special tokens added.
        seq_len: the longest sequence the engine serves.
        options: the operator's limits on the sizes of items, by modality.

    Raises:
        ContractError: the hooks contradict each other, or a dummy is not what was asked for.
        MissingExtraError: what reads the model's items is not installed.
        ProcessingError: a hook raised.
    """
    max_tokens: dict[str, int] = {}
    max_embeds: dict[str, int] = {}
    token_modality: dict[int, str] = {}
    features: list[MultiModalFeature] = []
    prompts: list[Sequence[int]] = []
    readable = parser.modality_parsers()
    for modality, limit in limits.items():  # also those the operator allows none of: their placeholders must be known
        if modality not in readable:
            raise ContractError(
                f"get_supported_mm_limits names {modality!r}, which get_data_parser's parser does not read; it "
                f"reads {', '.join(readable)}"
            )
        counts = {modality: 1}
        with _naming("get_dummy_text"):
            text = call_hook(hooks.get_dummy_text, mm_counts=counts)
        with _naming("get_dummy_mm_data"):
            data = call_hook(hooks.get_dummy_mm_data, seq_len=seq_len, mm_counts=counts, mm_options=options)
        with adapter_errors(f"the {modality} of get_dummy_mm_data"):
            tokens, feature = expand(text, _dummy_item(hooks, parser, modality, data))
        place = feature.placeholder
        if limit != 0:
            features.append(feature)
            prompts.append(tokens)
            max_tokens[modality], max_embeds[modality] = place.length, place.num_embeds
        mask = place.is_embed or (True,) * place.length
        placed = tokens[place.offset : place.end]
        token_modality.update({token: modality for token, embeds in zip(placed, mask, strict=True) if embeds})
    with adapter_errors("get_mm_max_tokens_per_item"):
        stated = hooks.get_mm_max_tokens_per_item(
            seq_len=seq_len, mm_counts={modality: limit or 1 for modality, limit in limits.items()}
        )
    for modality, most in (stated or {}).items():
        if most < min(max_tokens.get(modality, 0), seq_len):
            raise ContractError(
                f"get_mm_max_tokens_per_item says {most} {modality} tokens, but the dummy {modality} becomes "
                f"{max_tokens[modality]}"
            )
        if modality in max_tokens:
            max_embeds[modality] = max(max_embeds[modality], most)
            max_tokens[modality] = max(max_tokens[modality], most)
    targets = _other_targets(hooks, limits, tokenize, token_modality)
    replaced = replaced_targets(targets, tokenize)
    lone = frozenset(tokens[0] for tokens in replaced if len(tokens) == 1)  # an expanded prompt holds none of them
    marks = frozenset([*token_modality, *(tokens[0] for tokens in replaced)])
    return DummyProfile(max_tokens, max_embeds, token_modality, features, prompts, targets, lone, marks)


@contextmanager
def _naming(hook: str) -> Iterator[None]:
    """Name a hook in every error that it raises, also in those that say what is wrong with a request."""
    try:
        with adapter_errors(hook):
            yield
    except CorellmError as error:
        if hook not in str(error):
            error.args = (f"{hook}: {error}",)
        raise


def _dummy_item(hooks: HookCallers, parser: DataParser, modality: str, data: Mapping[str, Any]) -> MultiModalItems:
    """Return the one item that `get_dummy_mm_data` was asked for.

    Raises:
        ContractError: it returned other items, or something that the parser does not read.
        MissingExtraError: what reads such items is not installed.
    """
    counts = {modality: 1}
    try:
        items = parser.parse(data)
    except MissingExtraError as error:
        raise MissingExtraError(f"this model takes {modality}: {error}") from error
    except Exception as error:
        reader = "the parser of get_data_parser" if adapter_implements(hooks.get_data_parser) else "the parser"
        raise ContractError(
            f"get_dummy_mm_data was called with mm_counts={counts}, and {reader} does not read what it returned: "
            f"{type(error).__name__}: {error}"
        ) from error
    returned = {name: count for name, count in items.get_counts().items() if count}
    if returned != counts:
        raise ContractError(
            f"get_dummy_mm_data was called with mm_counts={counts} and returned {returned or 'no item'}; it must "
            f"return {{{modality!r}: media}} with as many items as the count says"
        )
    return items


def _other_targets(
    hooks: HookCallers,
    modalities: Collection[str],
    tokenize: Callable[[str], Sequence[int]],
    placeholder_token_ids: Collection[int],
) -> Sequence[PromptUpdate]:
    """Ask the adapter for its updates without an item; return those whose targets hold no token of a placeholder."""
    if not modalities:
        return ()
    try:
        updates = call_hook(hooks.get_prompt_updates, mm_items=MultiModalItems(), mm_kwargs={}, out_mm_kwargs={})
        own = [update for update in updates if update.modality in modalities]
        return targets_without(placeholder_token_ids, own, tokenize)
    except Exception as error:
        logger.debug("get_prompt_updates cannot be called without an item: %s: %s", type(error).__name__, error)
        return ()

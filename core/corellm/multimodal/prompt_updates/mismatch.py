"""Errors of prompts that do not match a request's items.

Each names the modality, the item, what was expected and what was given. Positions are in the prompt as given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from corellm.errors import AlreadyExpandedError, MissingPlaceholderError, PlaceholderError, SurplusPlaceholderError
from corellm.multimodal.prompt_updates.resolution import ResolvedUpdate, Target, name_items, noun


@dataclass(frozen=True)
class Edit:
    """Replaces the prompt's tokens `[start, end)` by the update's content."""

    start: int
    end: int
    update: ResolvedUpdate

    @property
    def matched(self) -> tuple[int, int]:
        """Where the target is in the prompt: what is replaced, or what an insertion follows."""
        return (self.end - len(self.update.target.chars), self.end)


def missing_error(
    prompt: str, options: Sequence[ResolvedUpdate], edits: Iterable[Edit], counts: Mapping[str, int]
) -> PlaceholderError:
    """The error of an item without a place, given its alternatives and what was bound before it."""
    for option in options:
        expanded = _find_content(prompt, option) if _is_distinctive(option) else None
        # A run of the target itself is that many placeholders, just not enough of them.
        if expanded is None and not (option.claims and option.content.embed_chars.issuperset(option.claims)):
            expanded = _find_run(prompt, option)
        if expanded is not None:
            return _expanded_error(option, *expanded)
    modality, item, target = options[0].modality, options[0].item, options[0].target
    total = counts[modality]
    bound = sum(edit.update.modality == modality for edit in edits)
    if options[0].claims:
        message = _count_message(bound, target, modality, total)
    elif target.kind == "prefix":
        message = f"the prompt does not begin with {target.label}, after which {noun(modality)} {item} belongs"
    else:
        assert target.kind == "tokens", "the start and the end of a prompt are always there"
        message = f"the prompt has no {target.label}, after which {noun(modality)} {item} belongs"
    return MissingPlaceholderError(message, modality=modality, item=item, expected=total, got=bound)


def refuse_expanded(prompt: str, edits: Iterable[Edit]) -> None:
    """Refuse a prompt that holds what an item's placeholder becomes.

    Content that repeats its target, such as `<image>` 576 times, is no proof: it may mean that many items. There the
    number of items decides: see `refuse_surplus`.

    Raises:
        AlreadyExpandedError: names the first such item.
    """
    seen: set[tuple[str, str]] = set()
    for edit in edits:
        key = (edit.update.content.chars, edit.update.claims)
        if key in seen or not _is_distinctive(edit.update):
            continue
        seen.add(key)
        expanded = _find_content(prompt, edit.update)
        if expanded is not None:
            raise _expanded_error(edit.update, *expanded)


def refuse_surplus(
    prompt: str,
    edits: Sequence[Edit],
    leftover: Sequence[tuple[int, Target, str]],
    counts: Mapping[str, int],
    reserved: Mapping[int, str],
) -> None:
    """Refuse targets without an item, and reserved tokens anywhere but in a target.

    Args:
        prompt: one character per token.
        edits: where the items are bound.
        leftover: `(position, target, modality)` of the other occurrences of replaceable targets.
        counts: `{modality: number of items}`.
        reserved: `{token id: modality}`; the tokens of the edits' contents that take embeddings are reserved too.

    Raises:
        SurplusPlaceholderError: about one modality; all its surplus placeholders are counted.
        AlreadyExpandedError: they look like an expanded placeholder.
    """
    if leftover:
        position, target, modality = min(leftover, key=lambda place: place[0])
        total = counts.get(modality, 0)
        got = total + sum(owner == modality for _, _, owner in leftover)
        message = f"{_count_message(got, target, modality, total)} (the one at position {position} is not needed)"
        raise _surplus_error(prompt, edits, modality, total, got, message)
    modality_of = dict(reserved)
    for edit in edits:
        modality_of.update((ord(char), edit.update.modality) for char in edit.update.content.embed_chars)
    strays = list(_scan(prompt, (edit.matched for edit in edits), modality_of))
    if strays:
        position, token = strays[0]
        modality = modality_of[token]
        total = counts.get(modality, 0)
        count = sum(modality_of[token] == modality for _, token in strays)
        owner = f"belongs to none of {name_items(modality, total)}" if total else f"there is no {noun(modality)}"
        way_out = "remove it" if total else f"give the {noun(modality)} with the prompt, or remove it"
        message = (
            f"the prompt has token {token} at position {position} ({count} such in all), which stands for "
            f"{noun(modality)} content, but {owner}; {way_out}"
        )
        raise _surplus_error(prompt, edits, modality, total, total + count, message)


def _surplus_error(
    prompt: str, edits: Iterable[Edit], modality: str, total: int, got: int, message: str
) -> PlaceholderError:
    for edit in edits:
        if edit.update.modality == modality:
            expanded = _find_content(prompt, edit.update) or _find_run(prompt, edit.update)
            if expanded is not None:
                return _expanded_error(edit.update, *expanded)
    return SurplusPlaceholderError(message, modality=modality, item=total, expected=total, got=got)


def _scan(prompt: str, skipped: Iterable[tuple[int, int]], wanted: Iterable[int]) -> Iterator[tuple[int, int]]:
    """`(position, token)` of the wanted tokens outside of what is skipped, in order."""
    pattern = re.compile("|".join(re.escape(chr(token)) for token in wanted) or r"(?!)")
    position = 0
    for start, end in sorted([*skipped, (len(prompt), len(prompt))]):
        for match in pattern.finditer(prompt, position, start):
            yield match.start(), ord(match[0])
        position = max(position, end)


def _is_distinctive(update: ResolvedUpdate) -> bool:
    """Whether the content, found in a prompt, can be nothing but an expanded placeholder."""
    return not update.claims or update.content.chars.count(update.claims) <= 1


def _find_content(prompt: str, update: ResolvedUpdate) -> tuple[int, int] | None:
    """`(position, length)` of the content in the prompt, if it is longer than what it replaces."""
    content = update.content.chars
    # One token to insert and the same token in the prompt cannot be told apart: surplus, not expanded.
    if len(content) <= max(1, len(update.claims)):
        return None
    position = prompt.find(content)
    return None if position < 0 else (position, len(content))


def _find_run(prompt: str, update: ResolvedUpdate) -> tuple[int, int] | None:
    """`(position, length)` of one embedding token repeated as often as the item, or several like it, would need."""
    if update.content.num_embeds < 2 or not update.content.tokens_embed:
        return None
    for char in update.content.embed_chars:
        for run in re.finditer(re.escape(char) + "{2,}", prompt):
            length = run.end() - run.start()
            if length % update.content.num_embeds == 0:
                return run.start(), length
    return None


def _expanded_error(update: ResolvedUpdate, position: int, length: int) -> AlreadyExpandedError:
    modality, item, claims = update.modality, update.item, update.claims
    way_out = f"write one {update.target.label} there" if claims else "remove them"
    return AlreadyExpandedError(
        f"the prompt was expanded already: at position {position} it holds {length} tokens like those that "
        f"{noun(modality)} {item} becomes; {way_out}, the engine expands it",
        modality=modality, item=item, expected=len(claims), got=length,
    )  # fmt: skip


def _count_message(count: int, target: Target, modality: str, total: int) -> str:
    return (
        f"the prompt has {count} placeholder{'' if count == 1 else 's'} {target.label} for "
        f"{name_items(modality, total)}; write one per {noun(modality)}"
    )

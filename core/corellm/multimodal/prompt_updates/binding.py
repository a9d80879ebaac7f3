"""Finds each item's place in a prompt, and puts its placeholder there.

Works on a string with one character per token. Reads the prompt a fixed number of times, however many items there are.
An item is bound to a place or an error is raised; none is dropped, moved or guessed.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import index as as_int

from corellm.errors import ContractError, PromptError
from corellm.multimodal.inputs import PlaceholderRange
from corellm.multimodal.prompt_updates.mismatch import Edit, missing_error, refuse_expanded, refuse_surplus
from corellm.multimodal.prompt_updates.resolution import PromptResolver, ResolvedUpdate, Target, as_chars, as_token_ids
from corellm.multimodal.prompt_updates.updates import PromptReplacement, PromptUpdate


def apply_prompt_updates(
    token_ids: Sequence[int],
    updates: Sequence[PromptUpdate],
    counts: Mapping[str, int],
    tokenize: Callable[[str], Sequence[int]],
    *,
    placeholder_token_ids: Mapping[int, str] | None = None,
) -> tuple[list[int], dict[str, list[PlaceholderRange]]]:
    """Return the prompt with every item's placeholder, and where they are.

    Args:
        token_ids: the prompt, with unexpanded placeholders.
        updates: what the adapter's `get_prompt_updates` returned.
        counts: `{modality: number of items}`.
        tokenize: text to token ids, adding no special tokens, but knowing those written out in the text.
        placeholder_token_ids: `{token id: modality}` of tokens that a prompt holds only where an item belongs.

    Returns:
        The expanded prompt, and the placeholder of each item: the keys of `counts`, in item order. Placeholders never
        overlap. Those of one modality ascend, unless the adapter gave its items targets of their own.

    Raises:
        MissingPlaceholderError: an item has no place; `item` is the first, `expected` and `got` count placeholders.
        SurplusPlaceholderError: a placeholder, or a token that only placeholders hold, has no item; `item` is the
            index that the missing item would have.
        AlreadyExpandedError: the prompt holds what a placeholder becomes; `expected` and `got` count its tokens.
        PromptError: a token id beyond any vocabulary.
        ContractError: the adapter's updates cannot be applied whatever the prompt.
    """
    prompt = _read_prompt(token_ids)
    updates = tuple(updates)
    resolver = PromptResolver(tokenize)
    reserved = dict(placeholder_token_ids or {})
    alternatives = resolver.alternatives(updates, counts, reserved.values())
    targets = _find_targets(prompt, _owners(updates, alternatives, resolver))
    binder = _Binder(prompt, counts, {target.chars: starts for target, _, starts in targets})
    for options in alternatives.values():
        binder.bind(options)
    leftover = [
        (start, target, modality)
        for target, modality, starts in targets
        for start in starts
        if start not in binder.used
    ]
    refuse_expanded(prompt, binder.edits)
    refuse_surplus(prompt, binder.edits, leftover, counts, reserved)
    return _assemble(prompt, binder.edits, counts)


def targets_without(
    token_ids: Collection[int], updates: Iterable[PromptUpdate], tokenize: Callable[[str], Sequence[int]]
) -> list[PromptUpdate]:
    """Return the updates that replace a target which no item changes, and which holds none of some tokens."""
    resolver = PromptResolver(tokenize)
    replacing = [update for update in updates if isinstance(update, PromptReplacement)]
    fixed = [(update, resolver.fixed_target(update)) for update in replacing]
    return [
        update
        for update, target in fixed
        if target is not None and target.kind == "tokens" and not {*as_token_ids(target.chars)} & {*token_ids}
    ]


def replaced_targets(updates: Iterable[PromptUpdate], tokenize: Callable[[str], Sequence[int]]) -> list[Sequence[int]]:
    """Return the tokens of each target that is replaced and that no item changes."""
    resolver = PromptResolver(tokenize)
    fixed = [resolver.fixed_target(update) for update in updates if isinstance(update, PromptReplacement)]
    return [as_token_ids(target.chars) for target in fixed if target is not None and target.kind == "tokens"]


class _Binder:
    """The state of binding items to places in one prompt."""

    def __init__(self, prompt: str, counts: Mapping[str, int], occurrences: Mapping[str, Sequence[int]]) -> None:
        self.edits: list[Edit] = []
        self.used: set[int] = set()
        """Starts of the occurrences that are replaced."""
        self._prompt = prompt
        self._counts = counts
        self._occurrences = occurrences
        self._landmarks: dict[str, int] = {}
        self._cursors: dict[object, int] = {}
        """The end of the last place, by modality and set of alternatives: the next one is not before it."""

    def bind(self, options: Sequence[ResolvedUpdate]) -> None:
        """Bind one item to the first of its alternatives that has a place.

        Raises:
            MissingPlaceholderError, AlreadyExpandedError: none has.
        """
        group = (options[0].modality, *(option.place for option in options))
        cursor = self._cursors.get(group, 0)
        for option in options:
            found = self._find(option, cursor)
            if found is not None and found[1] >= cursor:
                break
        else:
            raise missing_error(self._prompt, options, self.edits, self._counts)
        start, end = found
        self._cursors[group] = end
        if start < end:
            self.used.add(start)
        self.edits.append(Edit(start, end, option))

    def _find(self, option: ResolvedUpdate, cursor: int) -> tuple[int, int] | None:
        """Return `[start, end)` of what the option would replace; empty where it inserts; None if it has no place."""
        chars = option.target.chars
        match option.target.kind:
            case "start":
                return (0, 0)
            case "end":
                return (len(self._prompt), len(self._prompt))
            case "prefix":
                return (len(chars), len(chars)) if self._prompt.startswith(chars) else None
        if option.replaces:
            starts = self._occurrences[chars]
            for i in range(bisect_left(starts, cursor), len(starts)):
                if starts[i] not in self.used:
                    return (starts[i], starts[i] + len(chars))
            return None
        if chars not in self._landmarks:
            self._landmarks[chars] = self._prompt.find(chars)
        start = self._landmarks[chars]
        return None if start < 0 else (start + len(chars), start + len(chars))


def _read_prompt(token_ids: Sequence[int]) -> str:
    try:
        return as_chars(token_ids)
    except (TypeError, ValueError, OverflowError) as error:
        position, wrong = next((i, token) for i, token in enumerate(token_ids) if not _is_token_id(token))
        raise PromptError(f"the prompt has {wrong!r} at position {position}, which is not a token id") from error


def _is_token_id(value: int) -> bool:
    try:
        return 0 <= as_int(value) <= sys.maxunicode
    except TypeError:
        return False


def _owners(
    updates: Iterable[PromptUpdate],
    alternatives: Mapping[tuple[str, int], Sequence[ResolvedUpdate]],
    resolver: PromptResolver,
) -> dict[Target, str]:
    """Modality of each target that is replaced; no two targets have the same tokens.

    Includes targets of modalities without items, unless they depend on the item: in a prompt they are surplus.

    Raises:
        ContractError: items of two modalities share a target, which makes it ambiguous.
    """
    owners: dict[str, tuple[Target, str]] = {}
    for options in alternatives.values():
        for option in options:
            if not option.claims:
                continue
            target, modality = owners.setdefault(option.claims, (option.target, option.modality))
            if modality != option.modality:
                raise ContractError(
                    f"get_prompt_updates: {modality} and {option.modality} items share the target {target.label}, so "
                    f"an occurrence does not say which is meant; give each modality its own"
                )
    for update in updates:
        fixed = resolver.fixed_target(update) if isinstance(update, PromptReplacement) else None
        if fixed is not None and fixed.kind == "tokens":
            owners.setdefault(fixed.chars, (fixed, update.modality))
    return dict(owners.values())


def _find_targets(prompt: str, owners: Mapping[Target, str]) -> list[tuple[Target, str, list[int]]]:
    """`(target, modality, positions)`, read from left to right without overlap, the longest where several match."""
    found: dict[str, list[int]] = {target.chars: [] for target in owners}
    if found:
        pattern = "|".join(map(re.escape, sorted(found, key=len, reverse=True)))
        for match in re.finditer(pattern, prompt):
            found[match[0]].append(match.start())
    return [(target, modality, found[target.chars]) for target, modality in owners.items()]


def _assemble(
    prompt: str, edits: Iterable[Edit], counts: Mapping[str, int]
) -> tuple[list[int], dict[str, list[PlaceholderRange]]]:
    """Return the edited prompt and the placeholders. An insertion comes before a replacement at the same position."""
    given = as_token_ids(prompt)
    token_ids: list[int] = []
    placeholders: dict[tuple[str, int], PlaceholderRange] = {}
    position = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        update = edit.update
        if edit.start < position:
            raise ContractError(
                f"get_prompt_updates: {update.modality} {update.item} would be inserted inside another item's target; "
                f"choose a target for it that does not overlap"
            )
        token_ids += given[position : edit.start]
        placeholders[update.modality, update.item] = update.content.at(len(token_ids))
        token_ids += update.content.token_ids
        position = edit.end
    token_ids += given[position:]
    return token_ids, {
        modality: [placeholders[modality, item] for item in range(count)] for modality, count in counts.items()
    }

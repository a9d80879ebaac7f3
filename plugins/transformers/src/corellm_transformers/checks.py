"""Whether the engine will do what a model's own forward pass does: compared at load, on small items.

What differs is refused with the reason: a model is never run wrong. Knows transformers' processors and models by what
they take and give; knows no model family.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from corellm.errors import CheckpointError, ContractError
from corellm.modelling import DecoderInputs, item_token_ids
from corellm_transformers.arguments import AddedRows, ItemMask, added_rows, item_mask
from corellm_transformers.family import needs_plugin, without_text
from corellm_transformers.forward import Forward
from corellm_transformers.placeholders import expanded, flat
from corellm_transformers.spans import Spans

logger = logging.getLogger(__name__)

_DIFFERENCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Allowed between an item encoded alone and among others, as a share of the largest embedding."""
_HARMLESS = frozenset({"logits_to_keep", "num_logits_to_keep"})
"""Arguments that the decoder is given for what comes after it."""
_MARKS = ("image", "video", "audio", "boi", "eoi", "boa", "eoa")
"""Tokens of items and around them, by their names in configurations."""


class _Differs(Exception):
    """What the forward pass does is not what the engine will do; says in what.

    Args:
        what: the difference.
        hook: in which a plugin would say it; None where no hook can.
    """

    def __init__(self, what: str, hook: str | None) -> None:
        super().__init__(what)
        self.hook = hook


@torch.inference_mode()
def check_model(forward: Forward) -> None:
    """Compare the forward pass of prompts with small items with what the engine will do.

    A modality of which two items of one prompt differ from each alone, as padded ones may, and a single one does not,
    is served with one item per prompt; two modalities whose items differ beside each other, as where a model projects
    audio otherwise beside images, with prompts of one or the other. A model whose videos differ is served without.

    Raises:
        CheckpointError: they differ, or the model does not get a modality's items; says in what.
    """
    modalities = forward.family.modalities
    _require_known_tokens(forward)
    _find_replaced(forward)
    for modality in list(modalities):
        try:
            _settle(forward, modality)
            _require_effect(forward, modality)
        except CheckpointError as error:
            if modality != "video" or len(modalities) == 1:
                raise
            forward.family.leave_out(modality, error)
    for pair in combinations(modalities, 2):
        _settle_together(forward, pair)
    if len(modalities) > 2 and not forward.family.apart:
        _check_or_refuse(forward, list(modalities))
        _check_or_refuse(forward, list(modalities)[::-1])
    forward.family.state_findings()


def _settle(forward: Forward, modality: str) -> None:
    """Find how many items of a modality a prompt may have, and whether a chat's marks around one are part of it.

    Raises:
        CheckpointError: not even one is as the engine will make it.
    """
    known = forward.family.modalities
    plain = known[modality]
    forms = [plain, *forward.family.with_marks(modality)]
    for limit in (plain.limit, 1) if plain.limit != 1 else (1,):
        for form in forms:
            known[modality] = replace(form, limit=limit)
            try:
                _check(forward, [modality] * (1 if limit == 1 else 2))
                return
            except _Differs as error:
                number = "one" if limit == 1 else "several"
                logger.info(
                    "%s %s: a prompt may not have %s %r", type(forward.model).__name__, error, number, form.text
                )
    known[modality] = plain
    _check_or_refuse(forward, [modality])


def _settle_together(forward: Forward, pair: tuple[str, str]) -> None:
    """Find whether a prompt may have items of both modalities, whichever comes first."""
    try:
        _check(forward, pair)
        _check(forward, pair[::-1])
    except _Differs as error:
        forward.family.keep_apart(pair, f"{type(forward.model).__name__} {error}")


def _require_known_tokens(forward: Forward) -> None:
    """Refuse a configuration by which an item has a token that no prompt has: then nothing of it would be embedded."""
    size = len(forward.embedding.weight)
    for modality, name, token in item_token_ids(forward.model.config):
        if modality in forward.family.modalities and not 0 <= token < size:
            raise CheckpointError(
                f"{type(forward.model).__name__} has {name} {token} in its configuration, which is none of its {size} "
                f"tokens; name the token that stands for an {modality} there"
            )


def _require_effect(forward: Forward, modality: str) -> None:
    """Refuse a model that gives two different items of one size the same embeddings, such as their tokens' own."""
    family, rows = forward.family, []
    for one in (family.small(modality), family.turned(modality)):
        tensors, tokens = family.process(modality, one, {})
        rows.append(forward.embed(modality, tokens.to(forward.device), _on_device(forward, tensors)))
    if torch.equal(*rows):
        raise CheckpointError(
            f"{type(forward.model).__name__} gives two different {modality} items the same embeddings, so it does not "
            f"get them; compare the tokens of {modality} items in its configuration with its processor's"
        )


def _find_replaced(forward: Forward) -> None:
    """Find the tokens of items, and around them, that the forward pass embeds otherwise than its table."""
    config, known = forward.model.config, forward.family.modalities.values()
    stated = {getattr(config, f"{name}_token_id", None) for name in _MARKS}
    for token in sorted({t for t in stated if isinstance(t, int)}.union(*(m.embed_token_ids for m in known))):
        ids = torch.tensor([token], device=forward.device)
        try:
            row = forward.run(ids, {}).embeds[0, 0]
        except Exception as error:  # it refuses such a token without an item, and so does its `generate`
            logger.debug("token %d without an item: %s: %s", token, type(error).__name__, error)
            continue
        if not torch.equal(row, forward.table(ids)[0]):
            forward.replaced[token] = row


def _check_or_refuse(forward: Forward, wanted: Sequence[str]) -> None:
    try:
        _check(forward, wanted)
    except _Differs as error:
        raise needs_plugin(f"{type(forward.model).__name__} {error}", error.hook) from error.__cause__


def _check(forward: Forward, wanted: Sequence[str]) -> None:
    """Compare prompts with one item of each of these modalities, in this order.

    Raises:
        _Differs: the forward pass does something else, or cannot be run so.
    """
    family = forward.family
    items = [(modality, family.small(modality, seed)) for seed, modality in enumerate(wanted)]
    what = " and ".join(dict.fromkeys(wanted))
    plain = [family.modalities[modality].text for modality in wanted]
    marks = [family.in_chats(modality) for modality in wanted]
    try:
        parts = [(modality, *family.process(modality, item, {})) for modality, item in items]
        for texts in (plain, marks) if marks != plain else (plain,):
            for text in _texts(texts):
                ids, joint, spans = _expanded(forward, text, items, parts, what)
            _compare(forward, ids, joint, spans, parts, what)
    except (ContractError, ValueError, TypeError, LookupError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        differs = f"cannot be run up to its decoder with {what} items ({reason})"
        raise _Differs(differs, "get_multimodal_embeddings") from error
    except AttributeError as error:
        if not _is_raised_in_transformers(error):
            raise
        # no settings explain it: the model's own code asks for what is not there
        raise CheckpointError(
            f"{type(forward.model).__name__} fails in the code of transformers {version('transformers')} itself "
            f"({error}); another release may run it"
        ) from error


def _is_raised_in_transformers(error: Exception) -> bool:
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next(name for name in reversed(modules) if not name.startswith("torch.")).startswith("transformers.")


def _expanded(
    forward: Forward,
    text: str,
    items: Sequence[tuple[str, Any]],
    parts: Sequence[tuple[str, Mapping[str, Any], Tensor]],
    what: str,
) -> tuple[Tensor, Mapping[str, Any], list[tuple[int, int]]]:
    """Return a prompt's tokens, the processor's output for it, and where its items are.

    Raises:
        _Differs: the processor's tokens are not those of the text with each item's own.
    """
    family = forward.family
    joint = family.call(text, items, {})
    tokens = flat(joint["input_ids"])
    bare = family.ends.put(family.context.tokenizer(text)["input_ids"])
    targets = {modality: family.modalities[modality].target for modality, *_ in parts}
    ours, spans = expanded(bare, targets, [(modality, own.tolist()) for modality, _, own in parts])
    if ours != tokens:
        raise _Differs(
            f"has a processor whose tokens for {text!r} are not those of the text with the {what} items in it",
            "get_prompt_updates",
        )
    return torch.tensor(tokens, device=forward.device), joint, spans


def _compare(
    forward: Forward,
    ids: Tensor,
    joint: Mapping[str, Any],
    spans: Sequence[tuple[int, int]],
    parts: Sequence[tuple[str, Mapping[str, Any], Tensor]],
    what: str,
) -> None:
    """Compare what the decoder is given for a prompt with what is made of each item alone."""
    theirs = forward.run(ids, _on_device(forward, without_text(joint)))
    embeds, places = forward.text(ids), torch.zeros_like(ids, dtype=torch.bool)
    for (start, end), (modality, _, own) in zip(spans, parts, strict=True):
        places[start:end] = forward.takes_embeddings(modality, own.to(forward.device))
    _find_arguments(forward, theirs, places, what)
    if forward.layer_inputs is not None:
        forward.item_row = theirs.embeds[0, places][0, forward.layer_inputs.hidden_size :]
    rows = [forward.embed(modality, own.to(forward.device), _on_device(forward, data)) for modality, data, own in parts]
    embeds, more = forward.merged(embeds, torch.cat(rows), places)
    pairs = [(embeds, theirs.embeds[0])]
    for name, known in forward.arguments.items():
        if isinstance(known, AddedRows) and name in theirs.more:
            at = _places_of_rows(theirs.more, known.rows(theirs.more[name]), places)
            pairs += [
                (_spread(our, places), _spread(their, at))
                for our, their in zip(known.rows(more[name]), known.rows(theirs.more[name]), strict=True)
            ]
    for our, their in pairs:
        error, largest = (their - our).abs().max().item(), their.abs().max().item()
        if not error <= _DIFFERENCE[embeds.dtype] * largest:
            raise _Differs(
                f"makes other embeddings of {what} items in a prompt than of each alone (a difference of {error:.3g} "
                f"where the largest is {largest:.3g})",
                "get_multimodal_embeddings",
            )
    _check_positions(forward, theirs, ids.tolist(), [data for _, data, _ in parts])
    _find_spans(forward, ids, joint, spans, parts, what)


def _find_spans(
    forward: Forward,
    ids: Tensor,
    joint: Mapping[str, Any],
    where: Sequence[tuple[int, int]],
    parts: Sequence[tuple[str, Mapping[str, Any], Tensor]],
    what: str,
) -> None:
    """Find which tokens of a prompt see each other; refuse what is neither a row of an item's nor the whole prompt."""
    places = {modality: torch.zeros_like(ids, dtype=torch.bool) for modality, *_ in parts}
    for (start, end), (modality, _, own) in zip(where, parts, strict=True):
        places[modality][start:end] = forward.takes_embeddings(modality, own.to(forward.device))
    found = forward.spans_in(_on_device(forward, {**joint, "input_ids": ids[None]}), places)
    if found is None:
        differs = f"lets tokens of a prompt with {what} items see later ones that are not of the same item"
        raise _Differs(differs, "get_bidirectional_spans")
    known = forward.spans or found
    if known.whole != found.whole:
        raise _Differs("lets tokens of some prompts see all others, and of some not", "get_bidirectional_spans")
    forward.spans = Spans(known.modalities | found.modalities, known.whole)


def _texts(placeholders: Sequence[str]) -> Sequence[str]:
    """Prompts with the items at all sorts of places."""
    adjacent, apart = "".join(placeholders), "\n".join(f"{text}" for text in placeholders)
    return f"{adjacent}What?", f"a{adjacent}", f"a{adjacent}b", f"one {apart} two\n"


def _find_arguments(forward: Forward, theirs: DecoderInputs, places: Tensor, what: str) -> None:
    """Find how the decoder's further arguments follow from the items; refuse all others."""
    more = {name: value for name, value in theirs.more.items() if name not in _HARMLESS}
    rows = {name: known for name, value in more.items() if (known := added_rows(value)) is not None}
    at = next((_places_of_rows(more, known.rows(more[name]), places) for name, known in rows.items()), places)
    masks = {name: mask for name in more if name not in rows and (mask := item_mask(more[name], at)) is not None}
    found: dict[str, AddedRows | ItemMask] = {**rows, **masks}
    unknown = [name for name in more if name not in found or forward.arguments.get(name, found[name]) != found[name]]
    if unknown:
        raise _Differs(f"gives its decoder {', '.join(sorted(unknown))} beside the embeddings of {what} items", None)
    forward.arguments.update(found)


def _places_of_rows(more: Mapping[str, Any], rows: Sequence[Tensor], places: Tensor) -> Tensor:
    """Return which of a prompt's tokens the decoder adds rows to: all that take embeddings, or a mask's among them.

    Rows of zeros at the others change nothing: images may have rows of their own, and audio none.

    Raises:
        ValueError: no mask has as many.
    """
    masks = [value for value in more.values() if isinstance(value, Tensor) and value.dtype == torch.bool]
    known = [places, *(mask[0] if mask.dim() == 2 else mask[0, :, 0] for mask in masks)]
    for mask in known:
        if all(len(mask) == len(places) and int(mask.sum()) == len(row) for row in rows) and bool(
            (mask <= places).all()
        ):
            return mask
    raise ValueError(f"rows of {[len(row) for row in rows]} for {int(places.sum())} tokens")


def _spread(rows: Tensor, places: Tensor) -> Tensor:
    """Return rows at their places among zeros, `[num_tokens, width]`."""
    spread = rows.new_zeros(len(places), rows.shape[-1])
    spread[places] = rows
    return spread


def _check_positions(
    forward: Forward, theirs: DecoderInputs, tokens: list[int], items: Sequence[Mapping[str, Any]]
) -> None:
    if theirs.positions is None:
        forward.counts_positions()
        return
    found = forward.positions(tokens, items)
    ours = torch.arange(len(tokens)) if found is None else found[0]
    stated = theirs.positions.cpu()
    if stated.dim() == 3 and ours.dim() == 2:
        stated = stated[:, 0]
        if len(stated) == len(ours) + 1:  # positions in the text, for its mask
            ours = torch.cat([torch.arange(len(tokens))[None], ours])
    if stated.shape[-1] != ours.shape[-1] or not bool((stated == ours).all()):
        differs = "gives its decoder positions that neither count tokens nor are those of its get_rope_index"
        raise _Differs(differs, "get_rope_positions")


def _on_device(forward: Forward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A processor's tensors where the model is, in its type."""
    dtype = forward.embedding.weight.dtype
    return {
        name: value.to(forward.device, dtype if value.is_floating_point() else value.dtype)
        if isinstance(value, Tensor)
        else value
        for name, value in tensors.items()
    }

"""Whether the engine will do what a model's own forward pass does: compared at load, on small items.

What differs is refused with the reason: a model is never run wrong. Knows transformers' processors and models by what
they take and give; knows no model family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from corellm.errors import CheckpointError
from corellm.modelling import DecoderInputs
from corellm_transformers.family import without_text
from corellm_transformers.forward import Forward
from corellm_transformers.placeholders import expanded

_DIFFERENCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Allowed between an item encoded alone and among others, as a share of the largest embedding."""
_HARMLESS = frozenset({"logits_to_keep", "num_logits_to_keep"})
"""Arguments that the decoder is given for what comes after it."""


@torch.inference_mode()
def check_model(forward: Forward) -> None:
    """Compare the forward pass of prompts with two items of each modality with what the engine will do.

    Raises:
        CheckpointError: they differ; says in what.
    """
    for modality in forward.family.modalities:
        _check(forward, modality)


def _check(forward: Forward, modality: str) -> None:
    family = forward.family
    known = family.modalities[modality]
    count = min(2, known.limit or 2)
    items = [family.small(modality, seed) for seed in range(count)]
    parts = [family.process(modality, item, {}) for item in items]
    for text in _texts(known.text, count):
        joint = family.call(modality, text, items[: text.count(known.text)], {})
        tokens = joint["input_ids"][0]
        bare = family.context.tokenizer(text)["input_ids"]
        ours, spans = expanded(bare, known.target, [own.tolist() for _, own in parts])
        if ours != tokens.tolist():
            _refuse(
                forward,
                f"has a processor whose tokens for {text!r} are not those of the text with the {modality} items in it",
            )
    ids = tokens.to(forward.device)
    theirs = forward.run(ids, _on_device(forward, without_text(joint)))
    _find_deepstack(forward, theirs, modality)
    embeds = forward.embedding(ids)
    for (start, end), (tensors, own) in zip(spans, parts, strict=True):
        own = own.to(forward.device)
        rows = forward.embed(modality, own, _on_device(forward, tensors))
        span = embeds[start:end]
        span[forward.takes_embeddings(modality, own)] = rows[:, : span.shape[-1]]
    error, largest = (theirs.embeds[0] - embeds).abs().max().item(), theirs.embeds.abs().max().item()
    if not error <= _DIFFERENCE[embeds.dtype] * largest:
        _refuse(
            forward,
            f"makes other embeddings of {modality} items in a prompt than of each alone (a difference of {error:.3g} "
            f"where the largest is {largest:.3g})",
        )
    _check_positions(forward, theirs, tokens.tolist(), [tensors for tensors, _ in parts])


def _texts(placeholder: str, count: int) -> Sequence[str]:
    """Prompts with items at all sorts of places; the last one has all `count`."""
    if count < 2:
        return (f"{placeholder}What?", f"a{placeholder}", f"one {placeholder} two")
    return (f"{placeholder}What?", f"a{placeholder}{placeholder}b", f"one {placeholder} two\n{placeholder}\nthree")


def _find_deepstack(forward: Forward, theirs: DecoderInputs, modality: str) -> None:
    """Find the arguments by which the decoder's first layers get embeddings, too; refuse all others."""
    more = {name: value for name, value in theirs.more.items() if name not in _HARMLESS}
    masks = [name for name, value in more.items() if isinstance(value, Tensor) and value.dtype == torch.bool]
    lists = [name for name, value in more.items() if _are_rows(value, theirs.embeds.shape[-1])]
    if len(more) == 2 and len(masks) == len(lists) == 1:
        forward.deepstack = (masks[0], lists[0], len(more[lists[0]]))
    elif more:
        _refuse(forward, f"gives its decoder {', '.join(sorted(more))} beside the embeddings of {modality} items")


def _are_rows(value: Any, width: int) -> bool:
    return isinstance(value, Sequence) and all(isinstance(x, Tensor) and x.shape[1:] == (width,) for x in value)


def _check_positions(
    forward: Forward, theirs: DecoderInputs, tokens: list[int], items: Sequence[Mapping[str, Any]]
) -> None:
    if theirs.positions is None:
        forward.counts_positions()
        return
    found = forward.positions(tokens, items)
    ours = torch.arange(len(tokens)) if found is None else found[0]
    stated = theirs.positions.cpu()
    stated = stated[-3:, 0] if stated.dim() == 3 else stated
    if stated.shape[-1] != ours.shape[-1] or not bool((stated == ours).all()):
        _refuse(forward, "gives its decoder positions that neither count tokens nor are those of its get_rope_index")


def _on_device(forward: Forward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A processor's tensors where the model is, in its type."""
    dtype = forward.embedding.weight.dtype
    return {
        name: value.to(forward.device, dtype if value.is_floating_point() else value.dtype)
        if isinstance(value, Tensor)
        else value
        for name, value in tensors.items()
    }


def _refuse(forward: Forward, reason: str) -> NoReturn:
    raise CheckpointError(
        f"{type(forward.model).__name__} {reason}; this architecture needs a plugin of its own, or run the checkpoint "
        f"with transformers' own generate"
    )

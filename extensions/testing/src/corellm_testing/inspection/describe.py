"""Describes tensors, tokens and results of hooks in words and numbers. Knows no stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corellm.media.type_checks import is_tensor
from corellm.multimodal.fields import MultiModalField, MultiModalFieldConfig
from corellm.multimodal.nested import nbytes, shape_of
from corellm_testing.inspection.report import TensorStats

_FEW = 8
"""Most values, or elements of a list, that are listed one by one."""


def describe_tensor(name: str, data: Any, field: MultiModalField | None = None) -> TensorStats:
    """Return statistics of an item's entry or an encoder's output: a tensor, a list of them or plain data."""
    import torch

    layout = "" if field is None else f"flat along {field.dim}" if field.kind == "flat" else field.kind
    if not is_tensor(data):
        values = repr(data) if len(repr(data)) < 60 else ""
        return TensorStats(name, shape_of(data), type(data).__name__, nbytes(data), layout, values=values)
    fine = data.isfinite()
    finite = data if bool(fine.all()) else data[fine]
    some = bool(finite.numel())
    return TensorStats(
        name,
        str(list(data.shape)),
        str(data.dtype).removeprefix("torch."),
        nbytes(data),
        layout,
        low=float(finite.min()) if some else None,
        high=float(finite.max()) if some else None,
        mean=float(finite.mean(dtype=torch.float64)) if some else None,
        not_finite=data.numel() - finite.numel(),
        values=str(data.tolist()) if data.numel() <= _FEW else "",
    )


def token_texts(tokenizer: Any, token_ids: Iterable[int]) -> dict[int, str]:
    """Return each token's text within a text; where it is no text, such as part of a letter, the vocabulary's name."""

    def decode(ids: list[int]) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    texts: dict[int, str] = {}
    before = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]  # tokenizers may drop the space of a first word
    start = decode(before)
    for token_id in set(token_ids):
        name = tokenizer.convert_ids_to_tokens(token_id)
        text = "" if name is None else decode([*before, token_id]).removeprefix(start)
        texts[token_id] = text if text and "\ufffd" not in text else str(name or "(no text)")
    return texts


def describe_result(result: Any) -> str:
    """Return a hook's result in a few words: shapes of tensors, lengths of lists, types of objects."""
    if hasattr(result, "shape") and hasattr(result, "dtype"):
        return f"{list(result.shape)} {str(result.dtype).removeprefix('torch.')}"
    if isinstance(result, Mapping):
        return ", ".join(f"{name}: {describe_result(value)}" for name, value in result.items()) or "{}"
    if isinstance(result, (list, tuple)) and len(result) > _FEW:
        return f"{len(result)} x {type(result[0]).__name__}"
    if isinstance(result, (list, tuple)) and not all(isinstance(element, int) for element in result):
        return ", ".join(map(describe_result, result))
    if isinstance(result, MultiModalFieldConfig):
        return result.field.kind
    plain = result is None or isinstance(result, (int, float, str, list, tuple))
    return repr(result) if plain else type(result).__name__

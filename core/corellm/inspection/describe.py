"""Tensors, tokens and hooks' answers, in words and numbers. Knows no stage of the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corellm.inspection.report import TensorStats
from corellm.multimodal.fields import MultiModalField, MultiModalFieldConfig
from corellm.multimodal.nested import is_tensor, nbytes, shape_of

_FEW = 8
"""So many values, or elements of a list, are told one by one."""


def describe_tensor(name: str, data: Any, field: MultiModalField | None = None) -> TensorStats:
    """One entry of an item, or what an encoder gave: `data` is a tensor, a list of them or plain data."""
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
    """What each token says within a text; its name in the vocabulary where it has none, such as a part of a letter."""

    def decode(ids: list[int]) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    texts: dict[int, str] = {}
    before = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]  # a first word may lose its space
    start = decode(before)
    for token_id in set(token_ids):
        name = tokenizer.convert_ids_to_tokens(token_id)
        text = "" if name is None else decode([*before, token_id]).removeprefix(start)
        texts[token_id] = text if text and "\ufffd" not in text else str(name or "(no text)")
    return texts


def describe_answer(answer: Any) -> str:
    """A hook's answer in a few words: shapes of tensors, lengths of lists, types of objects."""
    if hasattr(answer, "shape") and hasattr(answer, "dtype"):
        return f"{list(answer.shape)} {str(answer.dtype).removeprefix('torch.')}"
    if isinstance(answer, Mapping):
        return ", ".join(f"{name}: {describe_answer(value)}" for name, value in answer.items()) or "{}"
    if isinstance(answer, (list, tuple)) and len(answer) > _FEW:
        return f"{len(answer)} x {type(answer[0]).__name__}"
    if isinstance(answer, (list, tuple)) and not all(isinstance(element, int) for element in answer):
        return ", ".join(map(describe_answer, answer))
    if isinstance(answer, MultiModalFieldConfig):
        return answer.field.kind
    plain = answer is None or isinstance(answer, (int, float, str, list, tuple))
    return repr(answer) if plain else type(answer).__name__

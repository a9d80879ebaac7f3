"""The next token of every row of logits in C++, as `corellm_kernels.gpu.sampling` has it in Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corellm_kernels.cpu.arguments import SampleArguments
from corellm_kernels.cpu.library import launch, pointer
from corellm_kernels.logit_edits import Edits, edited_by_torch

_DTYPES = (torch.float32, torch.bfloat16)


def sample(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    uniforms: Tensor | None = None,
    edits: Edits | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose a token per row; see `corellm.sampling.device_sampling.Sample`.

    Tokens that tie with a bound of top-k, top-p or min-p are kept.
    """
    if edits is None or (edits.added is None and edits.seen is None):
        masks = _Masks.of(edits, len(logits))
        return _sampled(logits, temperature, top_k, top_p, min_p, uniforms, masks)
    _, largest = _sampled(logits, None, None, None, None, None)
    tokens, _ = _sampled(edited_by_torch(logits, edits), temperature, top_k, top_p, min_p, uniforms)
    return tokens, largest


class _Masks(NamedTuple):
    """The tokens that some rows may have."""

    packed: Tensor
    """`[num_masks, words]` int32."""
    of_rows: Tensor
    """`[num_rows]` int64: each row's mask, -1 for none."""

    @classmethod
    def of(cls, edits: Edits | None, num_rows: int) -> _Masks | None:
        """Return those of edits; None if there are none."""
        if edits is None or edits.allowed is None or edits.allowed_rows is None:
            return None
        of_rows = torch.full((num_rows,), -1, dtype=torch.int64)
        of_rows[edits.allowed_rows] = torch.arange(len(edits.allowed))
        return cls(edits.allowed.contiguous(), of_rows)


def _sampled(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    uniforms: Tensor | None,
    masks: _Masks | None = None,
) -> tuple[Tensor, Tensor]:
    logits = logits if logits.dtype in _DTYPES else logits.float()
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    temperature, top_p, min_p, uniforms = (_as(x, torch.float64) for x in (temperature, top_p, min_p, uniforms))
    top_k = _as(top_k, torch.int32)
    packed, of_rows = (None, None) if masks is None else masks
    num_rows, vocab = logits.shape
    tokens, largest = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows, dtype=torch.float32)
    given = SampleArguments(
        logits.data_ptr(), logits.stride(0), num_rows, vocab, pointer(temperature), pointer(top_k), pointer(top_p),
        pointer(min_p), pointer(uniforms), pointer(packed), 0 if packed is None else packed.shape[1], pointer(of_rows),
        tokens.data_ptr(), largest.data_ptr(),
    )  # fmt: skip
    used = (logits, temperature, top_k, top_p, min_p, uniforms, packed, of_rows, tokens, largest)
    launch("sample", (logits.dtype,), given, *used)
    return tokens, largest


def _as(parameters: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parameters is None else parameters.to(dtype).contiguous()

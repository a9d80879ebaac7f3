"""Choosing tokens: the best against `torch.argmax`, top-p against what sorts, both against reading the logits once."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from bench.gpu.ceilings import bytes_per_second
from bench.gpu.settings import Settings
from bench.gpu.timing import Call, num_sets, timed

PART = "kernels"
_ROOM = 1.5
_BORDERLINE = 0.02
"""Share of rows, or one row, whose token may not be the twin's: a draw on the border of two, where rounding decides."""
_TOP_P = 0.9


def measure(settings: Settings) -> None:
    """Check and time both, for few and many rows, of a small and a large vocabulary."""
    shapes = [(3, 80)] if settings.quick else itertools.product((8, 64, 256, 1), (32064, 128256))
    for rows, vocab in shapes:
        for name, case in (("best token", _best), ("top-p", _top_p)):
            label = f"{name} of {rows} x {vocab}"
            if settings.seconds_left() < _ROOM:
                settings.records.note(PART, label, "not measured, time is up")
                continue
            with settings.records.guard(PART, label):
                case(settings, label, rows, vocab)


def sorted_top_p(logits: Tensor, temperature: Tensor, top_p: Tensor, uniforms: Tensor) -> Tensor:
    """Top-p as it is usually written: sort, sum, cut, draw."""
    probabilities, order = (logits.float() / temperature[:, None]).softmax(-1).sort(dim=-1, descending=True)
    before = probabilities.cumsum(-1) - probabilities
    ends = probabilities.masked_fill(before >= top_p[:, None], 0.0).cumsum(-1)
    place = (ends > uniforms[:, None] * ends[:, -1:]).int().argmax(-1)
    return order.gather(1, place[:, None])[:, 0]


def _best(settings: Settings, label: str, rows: int, vocab: int) -> None:
    from corellm_kernels.sampling import sample

    sets = _logits(settings, rows, vocab)
    places = torch.arange(vocab, device=sets[0].device)
    # of several best tokens torch's argmax may take any
    first = places.where(sets[0] == sets[0].amax(-1, keepdim=True), vocab).amin(-1)
    _check(sample(sets[0])[0], first, 1.0)
    _record(
        settings, label, sets[0].nbytes,
        [partial(sample, x) for x in sets], [partial(torch.argmax, x, -1) for x in sets],
    )  # fmt: skip


def _top_p(settings: Settings, label: str, rows: int, vocab: int) -> None:
    from corellm_kernels.sampling import sample, sample_reference

    sets = _logits(settings, rows, vocab)
    device = sets[0].device
    heat, share = torch.full((rows,), 0.8, device=device), torch.full((rows,), _TOP_P, device=device)
    uniforms = torch.rand(rows, dtype=torch.float64, device=device)
    options = (heat, None, share, None, uniforms)
    _check(sample(sets[0], *options)[0], sample_reference(sets[0], *options)[0], 1 - max(_BORDERLINE, 1 / rows))
    _record(
        settings, label, sets[0].nbytes,
        [partial(sample, x, *options) for x in sets],
        [partial(sorted_top_p, x, heat, share, uniforms.float()) for x in sets],
    )  # fmt: skip


def _logits(settings: Settings, rows: int, vocab: int) -> list[Tensor]:
    device = torch.device(settings.device)
    sets = num_sets(rows * vocab * settings.dtype.itemsize, device, most=32)
    return [(3 * torch.randn(rows, vocab, device=device)).to(settings.dtype) for _ in range(sets)]


def _check(ours: Tensor, theirs: Tensor, least: float) -> None:
    equal = float((ours == theirs).float().mean())
    if equal < least:
        raise ArithmeticError(f"{equal:.1%} of the tokens are the twin's, where {least:.0%} are wanted")


def _record(settings: Settings, label: str, size: int, ours: list[Call], plain: list[Call]) -> None:
    device = torch.device(settings.device)
    floor = 1e3 * size / bytes_per_second(settings)
    timing, slower = timed(ours, device), timed(plain, device)
    figures = {**timing.share_of(floor), "torch_ms": slower.ms, "ratio": slower.ms / timing.ms}
    settings.records.figure(PART, label, **figures)

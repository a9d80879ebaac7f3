"""Rotation and cache writes give what their torch twin gives, and the twin what transformers' models give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen2VLTextConfig
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding

from corellm_kernels.gpu.rotary import (
    rotate_and_cache,
    rotate_and_cache_reference,
    write_cache,
    write_cache_reference,
)
from tests.kernels.comparing import DEVICE, DTYPES, assert_same

BLOCKS, BLOCK_SIZE = 3, 4
QUANTIZED = (torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True)
class Case:
    """A step's projection and a cache for it."""

    tokens: int = 3
    kv_heads: int = 2
    group: int = 2
    size: int = 64
    value_size: int | None = None
    rotary: int = 64
    sections: tuple[int, int, int] | None = None
    wide_angles: bool = True
    cache: torch.dtype | None = None
    seed: int = 0

    def draw(self, *shape: int) -> Tensor:
        """The same for the same shape."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(self.seed))

    def projected(self, dtype: torch.dtype) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """A projection, and query, key and value as views of it."""
        widths = [heads * size for heads, size in self._heads()]
        whole = (self.draw(self.tokens, sum(widths)) * 3).to(DEVICE, dtype)
        parts = [x.unflatten(-1, shape) for x, shape in zip(whole.split(widths, dim=-1), self._heads(), strict=True)]
        return whole, (parts[0], parts[1], parts[2])

    def angles(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine with halves, and planes, of their own, and in no order that a kernel would expect."""
        planes = [] if self.sections is None else [3]
        found = self.draw(self.rotary, 2, *planes, self.tokens).movedim(0, -1).to(DEVICE)
        found = found.to(torch.float32 if self.wide_angles else dtype)
        return found[0], found[1]

    def caches(self, dtype: torch.dtype) -> list[Tensor]:
        """Keys' and values' cache and, of a quantized one, scales. Keys and values share blocks where they can."""
        kind = self.cache or dtype
        shapes = [(BLOCKS, BLOCK_SIZE, self.kv_heads, size) for _, size in self._heads()[1:]]
        if self.value_size is None:
            made = list(self.draw(BLOCKS, 2, *shapes[0][1:]).to(DEVICE, kind).unbind(1))
        else:
            made = [self.draw(*shape).to(DEVICE, kind) for shape in shapes]
        if self.cache is not None:
            made += [self.draw(*shapes[0][:-1]).to(DEVICE) for _ in range(2)]
        return made

    def slots(self) -> Tensor:
        """Scattered slots, every third token without."""
        found = torch.randperm(BLOCKS * BLOCK_SIZE, generator=torch.Generator().manual_seed(self.seed))[: self.tokens]
        found[self.seed % 3 :: 3] = -1
        return found.to(DEVICE)

    def _heads(self) -> list[tuple[int, int]]:
        """Heads and their size, of queries, keys and values."""
        heads = self.kv_heads * self.group
        return [(heads, self.size), (self.kv_heads, self.size), (self.kv_heads, self.value_size or self.size)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(st.sampled_from([64, 80, 96, 128, 256]))
    rotary = draw(st.sampled_from([size, size, size // 2, 24]))
    first, second = sorted(draw(st.tuples(*[st.integers(0, rotary // 2)] * 2)))
    return Case(
        tokens=draw(st.integers(0, 4)),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.sampled_from([1, 2, 9])),
        size=size,
        value_size=draw(st.none() | st.sampled_from([48, 64])),
        rotary=rotary,
        sections=(first, second - first, rotary // 2 - second) if draw(st.booleans()) else None,
        wide_angles=draw(st.booleans()),
        cache=draw(st.sampled_from([None, None, *QUANTIZED])),
        seed=draw(st.integers(0, 99)),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=80)
@given(case=cases(), rotating=st.booleans())
def test_rotation_and_writes(dtype: torch.dtype, case: Case, rotating: bool) -> None:
    results = []
    for rotate, write in ((rotate_and_cache, write_cache), (rotate_and_cache_reference, write_cache_reference)):
        (whole, (query, key, value)), (keys, values, *scales) = case.projected(dtype), case.caches(dtype)
        places = dict(zip(("key_scale", "value_scale"), scales, strict=False))
        if rotating:
            cos, sin = case.angles(dtype)
            rotate(query, key, value, cos, sin, keys, values, case.slots(), sections=case.sections, **places)
        else:
            write(key, value, keys, values, case.slots(), **places)
        results.append((whole, keys, values, *scales))
    for ours, theirs in zip(*results, strict=True):
        if ours.dtype in QUANTIZED:
            assert_nearly_all_same(ours, theirs)
        elif rotating:
            assert_same(ours, theirs, dtype)
        else:
            assert torch.equal(ours, theirs)


def assert_nearly_all_same(ours: Tensor, theirs: Tensor) -> None:
    """Rotated values that lie between two codes may fall to either side, where products are added without rounding."""
    differing = ours.view(torch.uint8) != theirs.view(torch.uint8)
    assert differing.float().mean() < 0.01
    relative, absolute = (0.0, 1.0) if ours.dtype == torch.int8 else (2**-3, 2**-9)  # the codes' distance
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(40, 40, 128), (71, 1, 64), (17, 17, 256)])
def test_more_heads_than_a_program_takes(dtype: torch.dtype, heads: int, kv_heads: int, size: int) -> None:
    case = Case(tokens=2, kv_heads=kv_heads, group=heads // kv_heads, size=size, rotary=size)
    results = []
    for rotate in (rotate_and_cache, rotate_and_cache_reference):
        (whole, parts), (keys, values) = case.projected(dtype), case.caches(dtype)
        rotate(*parts, *case.angles(dtype), keys, values, case.slots())
        results.append((whole, keys, values))
    for ours, theirs in zip(*results, strict=True):
        assert_same(ours, theirs, dtype)


def written(write: Callable[..., None], kind: torch.dtype, heads: Tensor) -> tuple[Tensor, Tensor]:
    """What a cache holds, in float32, and the scales, after `heads`, `[n, size]`, were written to it."""
    cache = torch.zeros(1, *heads[:, None].shape, device=DEVICE).to(kind)
    scales = torch.full(cache.shape[:3], torch.nan, device=DEVICE)
    write(
        heads[:, None], heads[:, None], cache, cache, torch.arange(len(heads), device=DEVICE),
        key_scale=scales, value_scale=scales,
    )  # fmt: skip
    return cache[0, :, 0].float(), scales[0, :, 0]


WRITES = pytest.mark.parametrize("write", [write_cache, write_cache_reference])
KINDS = pytest.mark.parametrize("kind", QUANTIZED)


@KINDS
@WRITES
def test_quantized_values_are_the_nearest(kind: torch.dtype, write: Callable[..., None]) -> None:
    """With a scale of 1: every code, what lies between two, to the even one, and what lies to either side of that."""
    largest = 127 if kind == torch.int8 else 448
    codes = torch.arange(-128, 128).to(torch.int8).view(kind).double()
    codes = codes[codes.abs() <= largest].unique()
    below, above = codes[:-1], codes[1:]
    even = torch.where(codes.to(kind).view(torch.uint8)[:-1] % 2 == 0, below, above)
    between = (below + above) / 2
    nudge = between.abs() * 1e-6
    values = torch.cat((codes, between, between - nudge, between + nudge))
    wanted = torch.cat((codes, even, below, above))
    both = F.pad(torch.stack((values, wanted)), (0, -len(values) % 255)).view(2, -1, 255)
    values, wanted = F.pad(both, (1, 0), value=largest).float().to(DEVICE)
    found, scales = written(write, kind, values)
    assert torch.equal(found, wanted)
    assert torch.equal(scales, torch.ones_like(scales))


@KINDS
@WRITES
def test_scales(kind: torch.dtype, write: Callable[..., None]) -> None:
    """Scales are right for a head of zeros, one so small that its scale is 0 or too coarse, and others."""
    largest = 127 if kind == torch.int8 else 448
    coarse = 1.25 * largest * 2.0**-149
    peaks = torch.tensor([0.0, 1e-44, coarse, 1e-30, 1.0, -65504.0, 3e38], device=DEVICE)
    heads = torch.linspace(-0.9, 0.9, 80, device=DEVICE) * peaks[:, None]
    heads[:, 7] = peaks
    found, scales = written(write, kind, heads)
    assert scales[0] == scales[1] == 1.0
    assert not found[:2].any()
    torch.testing.assert_close(scales[3:], peaks[3:].abs() / largest)
    assert (found[2:, 7].abs() == largest).all()
    restored, heads = (x[3:] / peaks[3:, None] for x in (found * scales[:, None], heads))
    torch.testing.assert_close(restored, heads, rtol=2**-4, atol=1 / 254)


def rotated(case: Case, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The twin's query, and what it wrote of the keys, `[n, heads, size]`."""
    query, key, value = (x.cpu() for x in case.projected(torch.float32)[1])
    keys, values = torch.zeros(case.tokens, 1, case.kv_heads, case.size), torch.zeros(case.tokens, 1, *value.shape[1:])
    slots = torch.arange(case.tokens)
    rotate_and_cache_reference(query, key, value, cos.cpu(), sin.cpu(), keys, values, slots, sections=case.sections)
    assert torch.equal(values[:, 0], value)
    return query, keys[:, 0]


@settings(max_examples=80)
@given(cases())
def test_the_twin_is_llamas_rotation_of_the_first_channels(case: Case) -> None:
    """As partial rotation is done in Persimmon and Phi."""
    case = replace(case, sections=None)
    cos, sin = (x.cpu() for x in case.angles(torch.float32))
    _, (query, key, _) = case.projected(torch.float32)
    wanted = apply_rotary_pos_emb(query[..., : case.rotary].cpu(), key[..., : case.rotary].cpu(), cos, sin)
    for ours, turned, x in zip(rotated(case, cos, sin), wanted, (query, key), strict=True):
        torch.testing.assert_close(ours, torch.cat((turned, x[..., case.rotary :].cpu()), dim=-1))


@settings(max_examples=20)
@given(cases(), st.tuples(*[st.integers(0, 32)] * 2))
def test_the_twin_is_qwen2_vls_rotation(case: Case, cuts: tuple[int, int]) -> None:
    """Where the sections are joined before the rotation."""
    sections = (min(cuts), abs(cuts[1] - cuts[0]), case.size // 2 - max(cuts))
    case = replace(case, rotary=case.size, sections=sections)
    config = Qwen2VLTextConfig(
        hidden_size=case.size, num_attention_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "mrope_section": list(sections)},
    )  # fmt: skip
    embedding = Qwen2VLRotaryEmbedding(config)
    positions = torch.randint(0, 40, (3, case.tokens), generator=torch.Generator().manual_seed(case.seed))
    planes = (positions[..., None] * embedding.inv_freq).repeat(1, 1, 2)
    _, (query, key, _) = case.projected(torch.float32)
    cos, sin = (x[0] for x in embedding(query.cpu(), positions[:, None]))
    wanted = apply_rotary_pos_emb(query.cpu(), key.cpu(), cos, sin)
    for ours, theirs in zip(rotated(case, planes.cos(), planes.sin()), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)

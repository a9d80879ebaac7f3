"""Attention of encoders in one kernel is as exact as SDPA, and leaves to SDPA what it does not do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from corellm_kernels.cpu.encoder_attention import NAME, encoder_attention, use_in_encoders

SHAPES = [
    # batch, heads, key/value heads, queries, keys, size, size of values
    (1, 4, 4, 257, 257, 64, 64),
    (3, 2, 2, 50, 50, 72, 72),
    (2, 4, 2, 33, 130, 20, 24),  # queries of their own, as a Q-Former has
    (2, 3, 3, 5, 7, 17, 9),
    (1, 2, 1, 1, 1, 32, 32),
    (2, 6, 6, 129, 64, 80, 80),
]


def module(*, is_causal: bool = False) -> nn.Module:
    """A layer, as transformers' attention functions ask it."""
    layer = nn.Module()
    layer.is_causal = is_causal  # type: ignore[assignment]
    return layer


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values `[batch, heads, tokens, size]`."""
    batch, heads, kv_heads, queries, keys, size, value_size = shape
    generator = torch.Generator().manual_seed(sum(shape))
    shapes = [(batch, queries, heads, size), (batch, keys, kv_heads, size), (batch, keys, kv_heads, value_size)]
    return [torch.randn(x, generator=generator).to(dtype).transpose(1, 2) for x in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_it_is_as_exact_as_sdpa(dtype: torch.dtype, shape: tuple[int, ...], scaling: float | None) -> None:
    given = draw(shape, dtype)
    options: dict[str, Any] = {"scale": scaling, "enable_gqa": shape[1] != shape[2]}
    exact = scaled_dot_product_attention(*(x.double() for x in given), **options).transpose(1, 2)
    sdpa = scaled_dot_product_attention(*given, **options).transpose(1, 2)
    ours, weights = encoder_attention(module(), *given, None, scaling=scaling)
    assert weights is None
    assert ours.shape == exact.shape
    assert ours.is_contiguous()
    # in bfloat16 weights are rounded, as by most of what SDPA chooses from
    limit = 1.5 * (sdpa - exact).norm() + 1e-6 * exact.norm()
    assert (ours - exact).norm() <= limit


def test_parts_of_one_projection_and_expanded_rows_are_read_where_they_are() -> None:
    whole = torch.randn(2, 40, 3, 4, 16)
    query, key, value = (x.transpose(1, 2) for x in whole.unbind(2))
    torch.testing.assert_close(
        encoder_attention(module(), query, key, value, None)[0],
        scaled_dot_product_attention(query, key, value).transpose(1, 2),
    )
    query, key, value = (x[:1].expand(3, -1, -1, -1) for x in (query, key, value))
    torch.testing.assert_close(
        encoder_attention(module(), query, key, value, None)[0],
        scaled_dot_product_attention(query, key, value).transpose(1, 2),
    )


def test_an_image_is_the_same_bits_alone_and_in_a_batch() -> None:
    query, key, value = draw((5, 4, 4, 65, 65, 32, 32), torch.float32)
    together = encoder_attention(module(), query, key, value, None)[0]
    alone = [encoder_attention(module(), *(x[i : i + 1] for x in (query, key, value)), None)[0] for i in range(5)]
    assert torch.equal(torch.cat(alone), together)


@pytest.mark.parametrize(
    ("layer", "mask", "options"),
    [
        (module(), torch.randn(2, 1, 9, 9), {}),
        (module(is_causal=True), None, {}),
        (module(), None, {"is_causal": True}),
        (module(), None, {"position_bias": torch.randn(1, 4, 9, 9)}),
    ],
    ids=["mask", "causal layer", "causal call", "bias"],
)
def test_the_rest_is_left_to_sdpa(layer: nn.Module, mask: Tensor | None, options: dict[str, Any]) -> None:
    given = draw((2, 4, 4, 9, 9, 16, 16), torch.float32)
    ours = encoder_attention(layer, *given, mask, scaling=0.2, **options)[0]
    assert torch.equal(ours, sdpa_attention_forward(layer, *given, mask, scaling=0.2, **options)[0])
    plain = encoder_attention(module(), *given, None, scaling=0.2)[0]
    assert not torch.allclose(ours, plain, atol=1e-3)


@pytest.mark.parametrize("batches", [(1, 3), (3, 1)], ids=str)
def test_queries_or_keys_of_a_whole_batch_are_left_to_sdpa(batches: tuple[int, int]) -> None:
    """A Q-Former has the same queries for every item: SDPA repeats them."""
    query, *_ = draw((batches[0], 2, 2, 5, 5, 16, 16), torch.float32)
    _, key, value = draw((batches[1], 2, 2, 7, 7, 16, 16), torch.float32)
    ours, _ = encoder_attention(module(), query, key, value, None)
    assert ours.shape == (3, 5, 2, 16)
    torch.testing.assert_close(ours, scaled_dot_product_attention(query, key, value).transpose(1, 2))


def test_other_types_are_left_to_sdpa() -> None:
    given = [x.double() for x in draw((2, 4, 4, 9, 9, 16, 16), torch.float32)]
    assert torch.equal(encoder_attention(module(), *given, None)[0], sdpa_attention_forward(module(), *given, None)[0])


def test_parts_on_sdpa_use_it_and_no_others() -> None:
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                     "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 50},
        vision_config={"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 32,
                       "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        image_token_id=49,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.model.language_model.config._attn_implementation = "eager"
    pixels = torch.randn(2, 3, 28, 28)
    with torch.inference_mode():
        before = model.get_image_features(pixels).pooler_output
        assert use_in_encoders(model) == 2
        after = model.get_image_features(pixels).pooler_output
    assert model.model.vision_tower.config._attn_implementation == NAME
    assert model.config._attn_implementation == NAME
    assert model.model.language_model.config._attn_implementation == "eager"
    torch.testing.assert_close(torch.stack(list(after)), torch.stack(list(before)))
    assert not torch.equal(torch.stack(list(after)), torch.stack(list(before)))

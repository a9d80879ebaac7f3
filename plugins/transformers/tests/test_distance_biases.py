"""Tables of distances hold what transformers' own modules say of each pair of tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.inkling.modeling_inkling import InklingRelativeLogits
from transformers.models.pix2struct.modeling_pix2struct import Pix2StructTextAttention
from transformers.models.t5.modeling_t5 import T5Attention

from corellm.errors import CheckpointError
from corellm.modelling import DistanceBias
from corellm_transformers.distance_biases import give_tables

NUM_TOKENS = 40


class Decoder(nn.Module):
    """A decoder with one part, and a configuration."""

    def __init__(self, part: nn.Module, **config: Any) -> None:
        super().__init__()
        self.part, self.config = part, SimpleNamespace(**config)


def causal(pairs: Tensor) -> Tensor:
    """Biases `[num_heads, num_tokens, num_tokens]` of keys up to their query."""
    return pairs.masked_fill(torch.ones(pairs.shape[-2:], dtype=torch.bool).triu(1), 0)


def as_pairs(bias: Any) -> Tensor:
    """What attention adds, `[num_heads, num_tokens, num_tokens]`."""
    assert isinstance(bias, DistanceBias)
    return causal(bias.of_pairs(torch.arange(NUM_TOKENS), NUM_TOKENS).transpose(0, 1))


@pytest.mark.parametrize("cls", [Pix2StructTextAttention, T5Attention])
@torch.inference_mode()
def test_buckets_of_distances(cls: Any) -> None:
    """There are fewer distances with a number of their own than tokens."""
    torch.manual_seed(0)
    sizes = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "num_heads": 3, "d_kv": 4}
    made = transformers.Pix2StructTextConfig if cls is Pix2StructTextAttention else transformers.T5Config
    width = {"hidden_size": 12} if cls is Pix2StructTextAttention else {"d_model": 12}
    config = made(**sizes, **width, is_decoder=True)
    part: Any = cls(config, has_relative_attention_bias=True, layer_idx=0)
    nn.init.normal_(part.relative_attention_bias.weight)
    wanted = causal(part.compute_bias(NUM_TOKENS, NUM_TOKENS)[0])
    give_tables(Decoder(part))
    torch.testing.assert_close(as_pairs(part.compute_bias(7, 9, past_seen_tokens=torch.arange(7))), wanted)
    part.relative_attention_bias.weight.mul_(2)  # as where a trainer writes new weights
    torch.testing.assert_close(as_pairs(part.compute_bias(1, 1)), 2 * wanted)


@torch.inference_mode()
def test_profiles_mixed_by_states() -> None:
    """Each token has its own; none reaches farther than there are distances."""
    torch.manual_seed(0)
    part = InklingRelativeLogits(5, 16)
    nn.init.normal_(part.proj)
    states, places = torch.randn(1, NUM_TOKENS, 3, 5), torch.arange(NUM_TOKENS)
    wanted = causal(part(states, places, places)[0])
    give_tables(Decoder(part, log_scaling_n_floor=None))
    torch.testing.assert_close(as_pairs(part(states, places + 9, places)), wanted)


def test_a_scale_that_follows_from_places_in_the_batch() -> None:
    """It would be that of other positions."""
    with pytest.raises(CheckpointError, match=r"scales attention by positions .*log_scaling_n_floor"):
        give_tables(Decoder(InklingRelativeLogits(5, 16), log_scaling_n_floor=128))

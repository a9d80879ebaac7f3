"""Layers that resemble a fused kind but compute something else, have hooks or share weights stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

from corellm.attention.paged import ATTENTION_NAME, register_attention
from corellm_kernels.fusion.fusing import fuse
from corellm_kernels.gpu.kernel_set import GPU_KERNELS
from tests.kernels.comparing import DEVICE, DTYPES, assert_same

register_attention()


class OnePlus(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) + super().forward(hidden_states) / self.weight


class RootPlusEps(LlamaRMSNorm):
    """Differs only where a row is very small."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        root = hidden_states.float().square().mean(-1, keepdim=True).sqrt()
        return self.weight * (hidden_states / (root + self.variance_epsilon))


class Gated(LlamaRMSNorm):
    """Differs only where a gate is given."""

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(hidden_states if gate is None else hidden_states * gate)


class Biased(LlamaRMSNorm):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.bias = nn.Parameter(torch.randn(size))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) + self.bias


class ScaledMLP(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.001


class SwappedMLP(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


class Flipped(LlamaAttention):
    """Rotates by angles that lie otherwise."""

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None, *args: Any, **kwargs: Any) -> Any:
        cos, sin = (x.flip(-1) for x in position_embeddings)
        return super().forward(hidden_states, (cos, sin), *args, **kwargs)


class LastChannels(LlamaAttention):
    """Rotates the last channels of each head, where the angles are fewer than channels."""

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None, *args: Any, **kwargs: Any) -> Any:
        missing = self.head_dim - position_embeddings[0].shape[-1]
        cos, sin = (
            functional.pad(x, (missing, 0), value=y) for x, y in zip(position_embeddings, (1.0, 0.0), strict=True)
        )
        return super().forward(hidden_states, (cos, sin), *args, **kwargs)


class SeveralPositions(LlamaAttention):
    """Takes angles of three positions, and of one."""

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None, *args: Any, **kwargs: Any) -> Any:
        if position_embeddings[0].ndim == 4:
            position_embeddings = [x.mean(0) for x in position_embeddings]
        return super().forward(hidden_states, position_embeddings, *args, **kwargs)


class Sinks(LlamaAttention):
    def __init__(self, config: LlamaConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.sinks = nn.Parameter(torch.zeros(4))


class SinksElsewhere(LlamaAttention):
    """Gives attention what is no parameter of its own."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, s_aux=self.o_proj.weight[0, :4], **kwargs)


class Capped(LlamaAttention):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, softcap=30.0, **kwargs)


class Parallel(LlamaDecoderLayer):
    """Attention and network read the same."""

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        return hidden_states + attended + self.mlp(self.post_attention_layernorm(hidden_states))


class OwnAngles(LlamaDecoderLayer):
    """Gives the attention other positions than it is given."""

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None, **kwargs: Any) -> Tensor:
        angles = torch.ones(1, hidden_states.shape[1], 8, device=hidden_states.device)
        return super().forward(hidden_states, position_embeddings=(angles, angles), **kwargs)


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = LlamaConfig(**SIZES, attn_implementation=ATTENTION_NAME)


def loaded(*modules: nn.Module) -> nn.ModuleList:
    """A model of these, with random weights, as after loading."""
    model = nn.ModuleList(modules)
    generator = torch.Generator().manual_seed(0)
    for x in model.parameters():
        x.requires_grad_(False).copy_(torch.randn(x.shape, generator=generator) * 0.3 + (x.ndim == 1))
    return model.eval().to(DEVICE)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: kind(32) for kind in (OnePlus, RootPlusEps, Gated, Biased)),
        *(lambda kind=kind: kind(CONFIG) for kind in (ScaledMLP, SwappedMLP)),
        *(lambda kind=kind: kind(CONFIG, 0) for kind in (Flipped, LastChannels, SeveralPositions)),
        *(lambda kind=kind: kind(CONFIG, 0) for kind in (Sinks, SinksElsewhere, Capped)),
        lambda: LlamaMLP(LlamaConfig(**(SIZES | {"hidden_act": "relu"}))),
        lambda: LlamaAttention(LlamaConfig(**SIZES), 0),  # not on the paged cache
        lambda: nn.LayerNorm((2, 16)),
        lambda: nn.LayerNorm(32, elementwise_affine=False),
        lambda: nn.GroupNorm(4, 32),
        lambda: nn.RMSNorm(32),  # its eps depends on the type
    ],
)
def test_lookalikes_stay(make: Callable[[], nn.Module]) -> None:
    assert fuse(loaded(make()), GPU_KERNELS) == []


@pytest.mark.parametrize("kind", [Parallel, OwnAngles])
def test_layers_around_fused_ones_stay(kind: type[LlamaDecoderLayer]) -> None:
    model = loaded(kind(CONFIG, 0))
    assert [line.split(":")[0] for line in fuse(model, GPU_KERNELS)] == [
        "2 x LlamaRMSNorm",
        "1 x LlamaMLP",
        "1 x LlamaAttention",
    ]
    assert type(model[0]) is kind


class LowRank(nn.Linear):
    """Layers that were adapted (LoRA) or quantized."""


def train(mlp: nn.Module) -> None:
    mlp.train()


def want_gradients(mlp: nn.Module) -> None:
    mlp.requires_grad_(True)


def hook(mlp: nn.Module) -> None:
    mlp.up_proj.register_forward_hook(lambda *_: None)


def replace_forward(mlp: nn.Module) -> None:
    mlp.down_proj.forward = mlp.down_proj.forward


def adapt(mlp: nn.Module) -> None:
    mlp.gate_proj.__class__ = LowRank


def widen(mlp: nn.Module) -> None:
    mlp.double()


@pytest.mark.parametrize("change", [train, want_gradients, hook, replace_forward, adapt, widen])
def test_what_somebody_has_changed_stays(change: Callable[[nn.Module], None]) -> None:
    model = loaded(LlamaMLP(CONFIG))
    change(model[0])
    assert fuse(model, GPU_KERNELS) == []


def test_what_is_shared_stays() -> None:
    """A layer in two places, and layers of which one weight is another's."""
    mlp = LlamaMLP(CONFIG)
    assert fuse(loaded(mlp, mlp), GPU_KERNELS) == []
    tied = LlamaMLP(CONFIG), nn.Linear(32, 48)
    tied[1].weight = tied[0].up_proj.weight
    assert fuse(loaded(*tied), GPU_KERNELS) == []


def test_projections_of_which_one_has_a_bias_stay() -> None:
    mlp, attention = LlamaMLP(CONFIG), LlamaAttention(CONFIG, 0)
    mlp.up_proj, attention.v_proj = nn.Linear(32, 48), nn.Linear(32, 16)
    assert fuse(loaded(mlp, attention), GPU_KERNELS) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_torch(dtype: torch.dtype) -> None:
    model = loaded(nn.LayerNorm(48), nn.LayerNorm(48, bias=False), nn.RMSNorm(48, eps=1e-3)).to(dtype)
    x = torch.randn(2, 3, 48).to(DEVICE, dtype)
    wanted = [norm(x) for norm in model]
    assert [line.split(":")[0] for line in fuse(model, GPU_KERNELS)] == ["2 x LayerNorm", "1 x RMSNorm"]
    for norm, theirs in zip(model, wanted, strict=True):
        assert_same(norm(x), theirs, dtype)


def test_random_numbers_are_left_alone() -> None:
    model = loaded(LlamaMLP(CONFIG), LlamaAttention(CONFIG, 0))
    state = torch.get_rng_state()
    assert len(fuse(model, GPU_KERNELS)) == 2
    assert torch.equal(torch.get_rng_state(), state)

"""Packed experts and routers give what transformers' modules give, and a token's results are its own."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.aria import modeling_aria
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.mixtral import modeling_mixtral
from transformers.models.nemotron_h import modeling_nemotron_h
from transformers.models.qwen3_moe import modeling_qwen3_moe

from corellm.quantization import round_inputs
from corellm_kernels.cpu import huge_pages
from corellm_kernels.cpu.activation_layers import fuse_activations
from corellm_kernels.cpu.experts import Gate, PackedExperts, pack_experts
from corellm_kernels.cpu.router_weights import RouterWeight, pack_routers
from corellm_kernels.fusion.layer_swap import TOLERANCES
from corellm_kernels.int8_linear import round_rows, to_int8

_SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
LAYERS: dict[str, tuple[type[nn.Module], type[Any], dict[str, Any], Gate]] = {
    "softmax before": (
        modeling_qwen3_moe.Qwen3MoeSparseMoeBlock, transformers.Qwen3MoeConfig,
        {"num_experts": 9, "moe_intermediate_size": 24, "num_experts_per_tok": 3, "norm_topk_prob": True},
        Gate("silu", None, 0.0),
    ),
    "gelu": (
        modeling_mixtral.MixtralSparseMoeBlock, transformers.MixtralConfig,
        {"num_local_experts": 5, "intermediate_size": 40, "hidden_act": "gelu"}, Gate("gelu", None, 0.0),
    ),
    "in turns, transposed, biases": (
        modeling_gpt_oss.GptOssMLP, transformers.GptOssConfig,
        {"num_local_experts": 6, "intermediate_size": 24}, Gate("quick_gelu", 7.0, 1.0),
    ),
    "transposed": (
        modeling_aria.AriaTextMoELayer, transformers.AriaTextConfig,
        {"moe_num_experts": 6, "moe_topk": 2, "intermediate_size": 24, "moe_num_shared_experts": 1},
        Gate("silu", None, 0.0),
    ),
}  # fmt: skip
"""Blocks with a router, how they are configured, and the gate."""
KINDS = [(dtype, quantize) for dtype in TOLERANCES if dtype != torch.float16 for quantize in (None, to_int8)]


def spread(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Give a layer random weights."""
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.requires_grad_(False).parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).to(dtype) / 4
    return nn.ModuleDict({"mlp": layer.to(dtype).eval()})


def block(name: str, dtype: torch.dtype) -> nn.Module:
    """A model of one block."""
    kind, config, given, _ = LAYERS[name]
    made = config(**_SIZES, **given)
    made._experts_implementation = "grouped_mm"
    return spread(kind(made), dtype)


def routed(model: Any, x: Tensor) -> Tensor:
    """What a block's routed experts make of tokens `[n, width]`: shared ones are linear layers as others are."""
    mlp = model["mlp"]
    router = mlp.gate if hasattr(mlp, "gate") else mlp.router
    _, shares, chosen = router(x)
    output: Tensor = mlp.experts(x, chosen, shares)
    return output


def tokens(count: int, dtype: torch.dtype) -> Tensor:
    """Random ones."""
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(count)).to(dtype)


def pack(model: nn.Module, quantize: Any = None) -> Counter[str]:
    """Pack a block as a load does."""
    fuse_activations(model)
    done = pack_experts(model, quantize)
    assert pack_routers(model) == 1
    return done


def is_close(ours: Tensor, theirs: Tensor, share: float) -> bool:
    """Whether the difference of all tokens together is a share of what there is."""
    return bool((ours.float() - theirs.float()).norm() <= share * theirs.float().norm())


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
@pytest.mark.parametrize("name", LAYERS)
def test_tokens_have_transformers_outputs_alone_and_together(name: str, dtype: torch.dtype, quantize: Any) -> None:
    """With weights of 8 bits, those of a block whose weights are the rounded ones."""
    model, rounded, x = block(name, dtype), block(name, dtype), tokens(70, dtype)
    if quantize is not None:
        experts: Any = rounded["mlp"].experts
        for parameter in (experts.gate_up_proj, experts.down_proj):
            for weight in parameter.transpose(1, 2) if experts.is_transposed else parameter:
                integers, factors = round_rows(weight)
                weight.copy_(integers * factors[:, None])
    wanted = routed(rounded, x)
    done = pack(model, quantize)
    assert done == {"Experts: packed weights" + (" of 8 bits" if quantize else ""): 1}
    experts = model["mlp"].experts
    assert isinstance(experts, PackedExperts)
    assert experts.gate == LAYERS[name][3]
    together = routed(model, x)
    assert is_close(together, wanted, TOLERANCES[dtype] if quantize is None else TOLERANCES[torch.bfloat16])
    alone = torch.cat([routed(model, row[None]) for row in x])
    for count in (1, 2, 3, 13, 37, 70):
        assert torch.equal(routed(model, x[:count]), alone[:count]), count


@pytest.mark.parametrize("dtype", [dtype for dtype in TOLERANCES if dtype != torch.float16])
def test_inputs_of_8_bits_are_a_tokens_own(dtype: torch.dtype) -> None:
    model, x = block("in turns, transposed, biases", dtype), tokens(37, dtype)
    assert round_inputs(model) == 0
    pack(model, to_int8)
    wanted = routed(model, x)
    assert round_inputs(model) == 2
    together = routed(model, x)
    assert torch.equal(together, torch.cat([routed(model, row[None]) for row in x]))
    assert is_close(together, wanted, 0.02)
    assert not is_close(together, wanted, 0.001)


def test_threads_change_nothing() -> None:
    model, x, before, outputs = block("gelu", torch.float32), tokens(23, torch.float32), torch.get_num_threads(), []
    pack(model)
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outputs.append(routed(model, x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_tokens_without_an_expert_get_nothing_of_it() -> None:
    """Numbers behind the last expert are of none, as transformers has it where other processes have some experts."""
    model, x = block("softmax before", torch.float32), tokens(4, torch.float32)
    pack(model)
    experts: Any = model["mlp"].experts
    chosen, shares = torch.tensor([[0, 9, 8], [9, 9, 9], [-1, 1, 2], [3, 4, 5]]), torch.full((4, 3), 0.5)
    output = experts(x, chosen, shares)
    assert not output[1].any()
    assert torch.equal(output[:1], experts(x[:1], torch.tensor([[0, 8]]), torch.full((1, 2), 0.5)))
    assert experts(x[:0], chosen[:0], shares[:0]).shape == (0, 64)
    for wrong in ((x[:3], chosen, shares), (x, chosen, shares[:, :2]), (x[:, :63], chosen, shares)):
        with pytest.raises(TypeError, match="expected"):
            experts(*wrong)


def test_a_limit_that_few_values_reach_is_kept() -> None:
    model = block("in turns, transposed, biases", torch.float32)
    experts: Any = model["mlp"].experts
    experts.limit = 500.0
    assert pack_experts(model) == {"Experts: packed weights": 1}
    assert model["mlp"].experts.gate == Gate("quick_gelu", 500.0, 1.0)


def test_experts_without_a_gate() -> None:
    """NemotronH's, whose activation squares; their router is not asked."""
    config = transformers.NemotronHConfig(
        hidden_size=64, n_routed_experts=4, moe_intermediate_size=32, moe_latent_size=None, mlp_hidden_act="relu2"
    )
    config._experts_implementation = "grouped_mm"
    model, x = spread(modeling_nemotron_h.NemotronHExperts(config), torch.float32), tokens(9, torch.float32)
    chosen, shares = torch.arange(18).view(9, 2) % 4, torch.rand(9, 2)
    wanted = model["mlp"](x, chosen, shares)
    assert pack_experts(model) == {"Experts: packed weights": 1}
    assert is_close(model["mlp"](x, chosen, shares), wanted, TOLERANCES[torch.float32])


def unaligned() -> nn.Module:
    """Experts with outputs that fill no panel."""
    config = transformers.MixtralConfig(hidden_size=60, intermediate_size=24, num_local_experts=3)
    config._experts_implementation = "grouped_mm"
    return spread(modeling_mixtral.MixtralExperts(config), torch.float32)


def hooked() -> nn.Module:
    """Experts that somebody watches."""
    model = block("gelu", torch.float32)
    experts: Any = model["mlp"].experts
    experts.register_forward_hook(lambda *_: None)
    return model


def of_other_outputs() -> nn.Module:
    """Experts whose own code does more than their marks say."""
    model = block("gelu", torch.float32)
    experts: Any = model["mlp"].experts
    kind = type(experts)
    experts.__class__ = type("Doubled", (kind,), {"forward": lambda self, *args: 2 * kind.forward(self, *args)})
    return model


@pytest.mark.parametrize("make", [unaligned, hooked, of_other_outputs])
def test_what_cannot_be_packed_stays(make: Any) -> None:
    model = make()
    assert pack_experts(model) == {"Experts: left to transformers": 1}
    assert not any(isinstance(module, PackedExperts) for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_router_multiplies_in_its_type_and_follows_its_values(dtype: torch.dtype) -> None:
    """DeepSeek's, which takes a weight of either type in float32."""
    config = transformers.DeepseekV3Config(
        hidden_size=64, n_routed_experts=32, n_group=4, topk_group=2, moe_intermediate_size=16
    )
    config._experts_implementation = "grouped_mm"
    model, x = spread(modeling_deepseek_v3.DeepseekV3MoE(config), dtype), tokens(33, dtype)
    router: Any = model["mlp"].gate
    (wanted, *_), _ = router(x), pack(model)
    assert isinstance(router.weight, RouterWeight)
    logits, *others = router(x)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)
    alone = [torch.cat(parts) for parts in zip(*(router(row[None]) for row in x), strict=True)]
    assert all(map(torch.equal, (logits, *others), alone))
    router.weight.copy_(2 * router.weight.detach())
    torch.testing.assert_close(router(x)[0], 2 * wanted, rtol=1e-5, atol=1e-5)


def test_a_routers_weight_is_used_as_any_tensor_is() -> None:
    """By keywords, as the type to cast to, copied, and with what its product would write beside."""
    weight, x, bias = RouterWeight(torch.randn(9, 64)), tokens(3, torch.float32), torch.randn(9)
    wanted = functional.linear(x, weight, bias)
    assert torch.equal(functional.linear(input=x, weight=weight, bias=bias), wanted)
    assert torch.equal(functional.linear(x, copy.deepcopy(weight), bias), wanted)
    assert torch.equal(functional.linear(x.double().to(weight), weight, bias), wanted)
    assert weight.type() == "torch.FloatTensor"
    for wrong in (bias.bfloat16(), torch.randn(3)):
        with pytest.raises((TypeError, RuntimeError), match=r"expected 3 x 9 of torch.float32|shape '\[-1, 9\]'"):
            functional.linear(x, weight, wrong)


def test_a_routers_weight_takes_no_huge_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two megabytes, in a mapping of 32: adapters make a weight in each step."""
    monkeypatch.setattr(huge_pages, "map_pages", None)
    weight, x = RouterWeight(torch.randn(9, 64)), tokens(3, torch.float32)
    torch.testing.assert_close(functional.linear(x, weight), x @ weight.detach().as_subclass(Tensor).T)


def test_a_routers_bias_stays_as_it_is() -> None:
    """Also for one token, whose outputs could be in the bias's memory."""
    model = block("in turns, transposed, biases", torch.float32)
    router: Any = model["mlp"].router
    pack(model)
    bias, x = router.bias.clone(), tokens(1, torch.float32)
    first = router(x)[0]
    torch.testing.assert_close(first, x @ router.weight.detach().as_subclass(Tensor).T + bias)
    assert torch.equal(router(x)[0], first)
    assert torch.equal(router.bias, bias)

"""Fused layers give what the originals gave, and layers that compute something else stay."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CONFIG_MAPPING, MODEL_MAPPING
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

from corellm import LLM, SamplingParams
from corellm.attention.backend import AttentionCall
from corellm.attention.paged import ATTENTION_NAME, PagedStep, register_attention
from corellm.attention.reference import causal_mask
from corellm.errors import ContractError
from corellm_kernels.extension import Kernels
from corellm_kernels.fusion.attention import FusedAttention
from corellm_kernels.fusion.decoder_layer import FusedDecoderLayer
from corellm_kernels.fusion.fusing import fuse
from corellm_kernels.fusion.mlp import FusedGatedMLP
from corellm_kernels.fusion.norms import FusedNorm
from corellm_kernels.gpu.backend import TritonAttention
from corellm_kernels.gpu.kernel_set import GPU_KERNELS
from tests.fixtures import random_image
from tests.kernels.comparing import DEVICE, DTYPES, TOLERANCES

register_attention()

# --- whole models ---------------------------------------------------------------------------------------------------

QWEN_PROMPT = "<|vision_start|><|image_pad|><|vision_end|>What?"
FAMILIES: dict[str, tuple[str, str | None, str, list[str]]] = {
    "llava": (
        "corellm_llava.tiny", None, "<image>\nWhat?",
        ["8 x LayerNorm", "5 x LlamaRMSNorm", "2 x LlamaMLP", "2 x LlamaAttention", "2 x LlamaDecoderLayer"],
    ),
    "qwen2_vl": (
        "corellm_qwen_vl.tiny", "Qwen2VLForConditionalGeneration", QWEN_PROMPT,
        ["5 x LayerNorm", "7 x Qwen2VLRMSNorm", "3 x Qwen2MLP", "3 x Qwen2VLAttention", "3 x Qwen2VLDecoderLayer"],
    ),
    "qwen2_5_vl": (
        "corellm_qwen_vl.tiny", "Qwen2_5_VLForConditionalGeneration", QWEN_PROMPT,
        [
            "12 x Qwen2_5_VLRMSNorm", "2 x Qwen2_5_VLMLP", "3 x Qwen2MLP", "3 x Qwen2_5_VLAttention",
            "3 x Qwen2_5_VLDecoderLayer",
        ],
    ),
    "qwen3_vl": (
        "corellm_qwen_vl.tiny", "Qwen3VLForConditionalGeneration", QWEN_PROMPT,
        [
            "9 x LayerNorm", "13 x Qwen3VLTextRMSNorm", "3 x Qwen3VLTextMLP", "3 x Qwen3VLTextAttention",
            "3 x Qwen3VLTextDecoderLayer",
        ],
    ),
    "blip2": ("corellm_blip2.tiny", None, "What?", ["16 x LayerNorm"]),
    "fuyu": ("corellm_fuyu.tiny", None, "What?", ["9 x LayerNorm", "2 x PersimmonDecoderLayer"]),
}  # fmt: skip
"""Module, architecture, a prompt with an image, and what is fused: attention of text decoders only."""


@pytest.fixture(scope="module")
def unfused(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[list[int]]]]:
    """`unfused(family)`: a tiny checkpoint, and its greedy tokens."""

    @cache
    def make(family: str) -> tuple[Path, list[list[int]]]:
        module, architecture, *_ = FAMILIES[family]
        options = {} if architecture is None else {"architecture": architecture}
        path = importlib.import_module(module).make_tiny_checkpoint(tmp_path_factory.mktemp(family), **options)
        with load(path) as llm:
            return path, greedy(llm, family)

    return make


def load(path: Path) -> LLM:
    """On float32, nothing fused."""
    return LLM(
        str(path), dtype="float32", device=DEVICE.type, max_model_len=256, num_kv_blocks=64, fuse_layers=False,
        enforce_eager=True,
    )  # fmt: skip


def greedy(llm: LLM, family: str, max_tokens: int = 5) -> list[list[int]]:
    """The greedy tokens of a prompt with an image, and of one without."""
    prompts: list[Any] = [
        {"prompt": FAMILIES[family][2], "multi_modal_data": {"image": random_image(40, 30, 1)}}, "Who is it?"
    ]  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def bytes_of(model: nn.Module) -> int:
    return sum(x.numel() * x.element_size() for x in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_stay(family: str, unfused: Callable[[str], tuple[Path, list[list[int]]]]) -> None:
    """Three kinds of positions, norms of heads and features between layers included; no weight is there twice."""
    path, wanted = unfused(family)
    with load(path) as llm:
        model = llm.engine.runner.model
        before = bytes_of(model)
        assert [line.split(":")[0] for line in fuse(model, GPU_KERNELS)] == FAMILIES[family][3]
        assert bytes_of(model) == before
        assert greedy(llm, family) == wanted
        assert fuse(model, GPU_KERNELS) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_stay_on_triton(family: str, unfused: Callable[[str], tuple[Path, list[list[int]]]]) -> None:
    """Where the backend rotates, and where layers do; Fuyu's keys and values are strided as no others are."""
    path, wanted = unfused(family)
    with load(path) as llm:
        fuse(llm.engine.runner.model, GPU_KERNELS)
        llm.engine.runner.backend = TritonAttention()
        count = 5 if DEVICE.type == "cuda" else 2  # interpreted: a prompt, and a step behind it
        assert greedy(llm, family, count) == [tokens[:count] for tokens in wanted]


def test_a_vision_towers_attention_is_not_touched(unfused: Callable[[str], tuple[Path, list[list[int]]]]) -> None:
    with load(unfused("llava")[0]) as llm:
        model = llm.engine.runner.model
        fuse(model, GPU_KERNELS)
        towers = {type(x).__name__ for name, x in model.named_modules() if "vision_tower" in name}
    assert "CLIPAttention" in towers
    assert {x for x in towers if x.startswith("Fused")} == {"FusedLayerNorm"}


# --- text decoders --------------------------------------------------------------------------------------------------


class CausalStep(PagedStep):
    """Attention of one sequence, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float, int | None]] = []

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        call = call.rotated()
        query, key, value = call.query, call.key, call.value
        self.asked.append((layer, call.scale, call.sliding_window))
        groups = query.shape[1] // key.shape[1]
        q, k, v = (x.transpose(0, 1) for x in (query, *(x.repeat_interleave(groups, 1) for x in (key, value))))
        mask = causal_mask(len(query), len(query), call.sliding_window, query.device)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scale).transpose(0, 1)


def decoder(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> nn.Module:
    """A text decoder of two layers with random weights."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = CONFIG_MAPPING[name](**{**sizes, "num_hidden_layers": 2, "vocab_size": 8, "pad_token_id": 0, **options})
    model: nn.Module = MODEL_MAPPING[type(config)](config)
    model.config._attn_implementation = ATTENTION_NAME
    generator = torch.Generator().manual_seed(0)
    for x in model.parameters():
        x.requires_grad_(False).copy_(torch.randn(x.shape, generator=generator) * 0.3 + (x.ndim == 1))
    return model.eval().to(DEVICE, dtype)


@torch.inference_mode()
def run(model: nn.Module, seed: int = 0) -> tuple[Tensor, CausalStep]:
    step = CausalStep()
    like = next(model.parameters())
    x = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(seed)).to(like)
    positions = torch.arange(5, device=like.device)[None] * 300
    return model(inputs_embeds=x, position_ids=positions, use_cache=False, paged=step)[0], step


ALL = {"norm", "mlp", "attention", "layer"}
DECODERS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}, ALL),
    ("mistral", {"sliding_window": 3, "head_dim": 16}, ALL),
    ("qwen2", {"hidden_act": "gelu_pytorch_tanh"}, ALL),
    ("qwen3", {"head_dim": 16}, ALL),
    ("starcoder2", {}, {"norm", "attention", "layer"}),  # LayerNorm; no gate
    ("mixtral", {"num_local_experts": 2}, {"norm", "attention", "layer"}),  # experts
    ("gemma", {"head_dim": 16}, {"mlp", "attention"}),  # norms multiply by 1 + weight
    ("granite", {"residual_multiplier": 0.5}, {"norm", "mlp", "attention"}),  # sums of scaled outputs
    ("cohere", {}, {"mlp"}),  # rotates neighbouring channels; norms subtract the mean
    ("olmo2", {}, {"norm", "mlp"}),  # norms whole projections, and what comes out of layers
    ("smollm3", {"no_rope_layers": [0, 1]}, ALL),  # one layer does not rotate
    (
        "ministral3",
        {"rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 1000,
        }},
        {"norm", "mlp", "layer"},  # scales queries that are far along
    ),
    ("phi", {"partial_rotary_factor": 0.5}, {"norm"}),
    ("persimmon", {}, {"norm", "layer"}),
]  # fmt: skip


def kinds(model: nn.Module) -> set[str]:
    """What of `ALL` was fused."""
    names = {FusedNorm: "norm", FusedGatedMLP: "mlp", FusedAttention: "attention", FusedDecoderLayer: "layer"}
    return {kind for x in model.modules() for base, kind in names.items() if isinstance(x, base)}


@pytest.mark.parametrize(("name", "options", "fused"), DECODERS, ids=[name for name, _, _ in DECODERS])
def test_what_is_fused_and_what_stays(name: str, options: dict[str, Any], fused: set[str]) -> None:
    """Scale and sliding window of every layer included."""
    model = decoder(name, **options)
    wanted, step = run(model)
    fuse(model, GPU_KERNELS)
    found, again = run(model)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    assert again.asked == step.asked
    assert kinds(model) == fused


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    model = decoder(name, dtype, head_dim=16)
    wanted, _ = run(model)
    fuse(model, GPU_KERNELS)
    assert kinds(model) == ALL
    found, _ = run(model)
    assert ((found - wanted).float().norm() / wanted.float().norm()) < 10 * TOLERANCES[dtype]


def test_layers_that_do_not_rotate_stay() -> None:
    model = decoder("smollm3", no_rope_layers=[0, 1])
    fuse(model, GPU_KERNELS)
    assert [isinstance(layer.self_attn, FusedAttention) for layer in model.layers] == [False, True]


def test_layers_that_call_a_kind_of_mlp_in_another_way_stay() -> None:
    """As Ernie's do, whose experts take the types of tokens and return more than hidden states."""
    model = decoder("llama")
    routed, plain = model.layers[1], type(model.layers[1].mlp)

    class Routed(plain):  # type: ignore[misc, valid-type]
        def forward(self, hidden_states: Tensor, scale: float) -> tuple[Tensor, float]:
            return super().forward(hidden_states) * scale, scale

    class Layer(type(routed)):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
            hidden_states = (
                hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
            )
            inner = self.post_attention_layernorm(hidden_states)
            inner = self.mlp(inner, 0.5)[0] if isinstance(self.mlp, Routed) else self.mlp(inner)
            return hidden_states + inner

    routed.__class__, routed.mlp.__class__ = Layer, Routed
    wanted, _ = run(model)
    fuse(model, GPU_KERNELS)
    found, _ = run(model)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    assert [isinstance(layer, FusedDecoderLayer) for layer in model.layers] == [True, False]


def test_the_callers_tensors_are_read_only_and_any_layout_is_read() -> None:
    """A layer adds only to tensors of its own, and norms take rows that are not contiguous."""
    model = decoder("llama")
    norm, wanted = model.norm, model.norm(torch.arange(96.0, device=DEVICE).view(32, 3).t())
    fuse(model, GPU_KERNELS)
    assert model.norm is not norm
    torch.testing.assert_close(model.norm(torch.arange(96.0, device=DEVICE).view(32, 3).t()), wanted)
    x = torch.randn(1, 3, 32, device=DEVICE)
    kept = x.clone()
    angles = torch.randn(2, 1, 3, 8, device=DEVICE).unbind()
    model.layers[0](x, position_embeddings=angles, attention_mask=None, paged=CausalStep())
    assert torch.equal(x, kept)


def test_fused_layers_are_still_what_they_were() -> None:
    """Fused layers keep classes and attributes, are called by position or by name, and refuse the same arguments."""
    model = decoder("llama")
    x, angles = torch.randn(1, 3, 32, device=DEVICE), torch.randn(2, 1, 3, 8, device=DEVICE).unbind()
    with torch.inference_mode():
        wanted = model.layers[1](x, position_embeddings=angles, paged=CausalStep())
        fuse(model, GPU_KERNELS)
        layer = model.layers[1]
        torch.testing.assert_close(layer(x, None, None, None, False, angles, paged=CausalStep()), wanted)
        attended = layer.self_attn(x, position_embeddings=angles, paged=CausalStep())[0]
        assert torch.equal(layer.self_attn(x, angles, paged=CausalStep())[0], attended)
    parts = (layer, layer.self_attn, layer.mlp, layer.input_layernorm)
    for part, kind in zip(parts, (LlamaDecoderLayer, LlamaAttention, LlamaMLP, LlamaRMSNorm), strict=True):
        assert isinstance(part, kind)
    assert (layer.self_attn.layer_idx, layer.self_attn.scaling, layer.input_layernorm.variance_epsilon) == (
        1, 8**-0.5, 1e-6
    )  # fmt: skip
    with pytest.raises(ContractError, match="`paged`"):
        layer.self_attn(x, position_embeddings=angles)
    with pytest.raises(ContractError, match="causal"):
        layer(x, position_embeddings=angles, attention_mask=torch.ones(3, 3), paged=CausalStep())


def test_where_no_kernels_run_nothing_is_changed() -> None:
    model = decoder("llama").cpu()
    assert Kernels().fuse_layers(model, torch.device("cpu"), torch.float16, quantize=None, kept=None) is None
    assert kinds(model) == set()

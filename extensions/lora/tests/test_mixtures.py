"""Adapters of experts that are kept as one tensor, and of their routers, give the tokens that PEFT generates."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from corellm import LLM, LoRARequest
from corellm.errors import InvalidParameterError
from corellm_lora.adapter_files import Values
from corellm_lora.low_rank import add_low_rank
from corellm_lora.mixtures import ChangedExperts
from corellm_lora.terms import ExpertWeights
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.lora.tests.adapters import Adapted
from extensions.lora.tests.test_outputs import LENGTH, engine, generate, numbers_of, require_equal
from extensions.lora.tests.test_refusals import CONFIG, WEIGHTS
from tests.text_models.parity import PROMPTS

BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "target_modules": ["q_proj", "v_proj"]},
    "experts": {
        "r": 3, "target_modules": ["o_proj"], "target_parameters": BOTH, "use_rslora": True,
        "rank_pattern": {"layers.0.mlp.experts.gate_up_proj": 5}, "alpha_pattern": {"down_proj": 11},
    },
    "outward": {"r": 2, "target_modules": [], "target_parameters": BOTH[1:], "layers_to_transform": [1]},
    "inward": {"r": 2, "target_modules": [], "target_parameters": BOTH[:1]},
}  # fmt: skip
SIZES = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "num_key_value_heads": 2, "intermediate_size": 32}
ROUTED = {
    "target_parameters": [*BOTH, "mlp.gate.weight", "k_proj.weight"], "target_modules": [], "r": 4,
    "alpha_pattern": {"k_proj.weight": 90}, "rank_pattern": {"mlp.gate.weight": 3},
}  # fmt: skip
ALL = {"r": 4, "target_modules": "all-linear", "lora_alpha": 16}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "Qwen3MoeForCausalLM": (
        {**SIZES, "num_experts": 4, "head_dim": 16}, {**CONFIGS, "router": ROUTED, "all": ALL}
    ),
    "GptOssForCausalLM": (
        {**SIZES, "num_local_experts": 4, "head_dim": 16, "layer_types": ["full_attention", "sliding_attention"]},
        CONFIGS,
    ),
    "MixtralForCausalLM": ({**SIZES, "num_local_experts": 4}, {"all": ALL}),
    "PhimoeForCausalLM": (
        {**SIZES, "num_local_experts": 4}, {"router": {**CONFIGS["inward"], "target_parameters": ["router.weight"]}}
    ),
}  # fmt: skip
OF_ONE = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}
"""The linear layers of Mixtral's experts in earlier releases, by the parameters that have them now."""


def make(folder: Path, architecture: str) -> Adapted:
    """A tiny mixture whose experts do not all say the same, and its adapters."""
    sizes, configs = FAMILIES[architecture]
    path = make_tiny_checkpoint(folder / "model", architecture=architecture, **sizes)
    tensors = load_file(path / "model.safetensors")
    torch.manual_seed(0)
    spread = {
        name: torch.randn_like(tensor) / 8 for name, tensor in tensors.items() if "experts" in name or "block" in name
    }
    save_file({**tensors, **spread}, path / "model.safetensors", {"format": "pt"})
    return Adapted.made(folder, path, getattr(transformers, architecture), configs)


@pytest.fixture(scope="module", params=["Qwen3MoeForCausalLM", "GptOssForCausalLM"])
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """One family after the other."""
    return make(tmp_path_factory.mktemp("mixture"), request.param)


def require_pefts(adapted: Adapted, llm: LLM, requests: list[tuple[str, str | None]]) -> None:
    """All in one batch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(adapted.path)
    given = [(tokenizer(prompt, return_tensors="pt"), name) for prompt, name in requests]
    outputs = generate(llm, [prompt for prompt, _ in requests], adapted.requests(name for _, name in requests))
    wanted = adapted.wanted(given, LENGTH)
    require_equal(outputs, wanted)
    assert len({str(one.logprobs) for one in wanted}) == len(requests)


def test_tokens_equal_pefts(mixture: Adapted) -> None:
    """All adapters and none in one batch, in chunks; a request has the same tokens alone."""
    names = (None, *mixture.adapters)
    requests = [(PROMPTS[2], name) for name in names] + [(PROMPTS[1], "experts"), (PROMPTS[1], None)]
    with engine(mixture, max_loras=6, max_num_batched_tokens=32) as llm:
        require_pefts(mixture, llm, requests)
        together = generate(llm, [PROMPTS[1], PROMPTS[2]], mixture.requests(("experts", "inward")))
        (alone,) = generate(llm, [PROMPTS[1]], mixture.request("experts"))
        assert numbers_of(alone)[0] == numbers_of(together[0])[0]


def test_tokens_equal_pefts_where_experts_are_transformers(mixture: Adapted) -> None:
    """There the experts run once more for an adapter's rows."""
    with engine(mixture, max_loras=2, fuse_layers=False) as llm:
        require_pefts(mixture, llm, [(PROMPTS[1], "experts"), (PROMPTS[1], None)])


def test_factors_of_some_experts_take_memory_for_these() -> None:
    """Not for all that a layer has; tokens of others stay as they are, and so do rows that no token has."""
    experts: Any = torch.nn.Module()
    experts.down_proj = SimpleNamespace(num_experts=128, in_turns=False, weight=torch.empty(0))
    added: list[Any] = []
    change = ChangedExperts(experts, lambda *given: (added.append(given[2]), add_low_rank(*given))[1])
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, generator=generator) for size in ((4, 32), (64, 4)))
    for number in (3, 127):
        change.add(ExpertWeights("experts", "down_proj", number, 1, 32, (0, 64)), Values({"a": a, "b": b}, 2.0, ()))
    x, chosen, places = torch.randn(5, 32, generator=generator), [[3, 9], [127, 128]], [[0, 1], [3, -1]]
    output = torch.zeros(5, 64)
    change.add_to("down_proj", x, output, torch.tensor(chosen), torch.tensor(places))
    torch.testing.assert_close(output[[0, 3]], 2 * x[[0, 3]] @ a.T @ b.T)
    assert not output[[1, 2, 4]].any()
    assert [len(slots.ranks) for slots in added] == [3]


def test_a_router_that_is_a_kind_of_linear_layer(tmp_path: Path) -> None:
    """PhiMoE's returns experts for rows, where linear layers return outputs."""
    phimoe = make(tmp_path, "PhimoeForCausalLM")
    with engine(phimoe, max_loras=1) as llm:
        require_pefts(phimoe, llm, [(PROMPTS[2], "router"), (PROMPTS[2], None)])


def as_before(folder: Path, adapter: LoRARequest) -> LoRARequest:
    """Write an adapter of all linear layers of Mixtral in the names and shapes of earlier releases."""
    tensors, made = load_file(Path(adapter.lora_path, WEIGHTS)), dict[str, torch.Tensor]()
    for key, tensor in tensors.items():
        start, found, end = key.partition(".mlp.experts.")
        if not found:
            made[key.replace(".mlp.", ".block_sparse_moe.")] = tensor
            continue
        names = OF_ONE["gate_up_proj" if end.startswith("base_layer") else "down_proj"]
        for number in range(4):
            if "lora_A" in end:
                parts = tensor.chunk(4)[number].chunk(len(names))
            else:
                whole = tensor.unflatten(1, (-1, 4))[:, :, number]
                parts = [part.chunk(len(names), 1)[i] for i, part in enumerate(whole.chunk(len(names)))]
            for name, part in zip(names, parts, strict=True):
                made[f"{start}.block_sparse_moe.experts.{number}.{name}.{end.removeprefix('base_layer.')}"] = part
    stated = json.loads(Path(adapter.lora_path, CONFIG).read_text())
    for name in ("target_parameters", "rank_pattern", "alpha_pattern"):
        del stated[name]
    stated["target_modules"] = ["q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3", "gate"]
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in made.items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(stated))
    return LoRARequest(folder.name, 9, str(folder))


def test_adapters_of_earlier_releases(tmp_path: Path) -> None:
    """Factors of each expert's linear layers, whose parts of the joined weight do not mix; PEFT reads them, too."""
    mixtral = make(tmp_path, "MixtralForCausalLM")
    joined = mixtral.adapters["all"]
    tensors = load_file(Path(joined.lora_path, WEIGHTS))
    for key, tensor in tensors.items():
        if "base_layer.lora_B" in key:  # of the first half by the first ranks, of the second one by the others
            halves = tensor.view(2, 32, 2, 4, 4)
            halves[0, :, 1], halves[1, :, 0] = 0, 0
    save_file(tensors, Path(joined.lora_path, WEIGHTS), {"format": "pt"})
    before = as_before(tmp_path / "before", joined)
    both = Adapted(mixtral.path, {"joined": joined, "before": before}, mixtral.reference)
    tokenizer = transformers.AutoTokenizer.from_pretrained(both.path)
    given = tokenizer(PROMPTS[1], return_tensors="pt")
    wanted = both.wanted([(given, "joined"), (given, "before"), (given, None)], LENGTH)
    assert wanted[0].token_ids == wanted[1].token_ids != wanted[2].token_ids
    with engine(both, max_loras=2) as llm:
        outputs = generate(llm, [PROMPTS[1]] * 3, [joined, before, None])
        require_equal(outputs, wanted)
        for change, says in (
            ({"layers.0.mlp.experts.base_layer.lora_A.weight": (31, 64)}, r"gate_up_proj: .*\[31, 64\].*\[32, 64\]"),
            ({f"layers.0.mlp.experts.{'0.' * 2000}w1.lora_A.weight": (4, 64)}, "is no linear layer of this model"),
            ({f"layers.0.mlp.experts.{'1' * 5000}.w1.lora_A.weight": (4, 64)}, "is no linear layer of this model"),
            ({"layers.0.mlp.experts.4.w1.lora_A.weight": (4, 64)}, r"experts\.4\.w1 is no linear layer.*down_proj"),
        ):
            changed = {f"base_model.model.model.{key}": torch.zeros(shape) for key, shape in change.items()}
            save_file({**tensors, **changed}, Path(joined.lora_path, WEIGHTS))
            with pytest.raises(InvalidParameterError, match=says):
                generate(llm, [PROMPTS[1]], joined)

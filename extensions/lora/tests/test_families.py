"""Adapters of towers, projectors, whole modules, embeddings and the output layer give the tokens that PEFT generates.

Each family's tiny checkpoint is loaded once, and one batch mixes eight adapters with requests that have none.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import transformers

from corellm import LLM, LoRARequest, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm_kernels.cpu import library
from corellm_lora.adapters import Adapters
from corellm_testing.reference import Continuation, Reference
from extensions.lora.tests.adapters import save_adapter, with_adapter
from tests.fixtures import random_image

LENGTH = 8
PARAMS = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logprobs=0)
SECOND = (None, "decoder", "tower", "all")
"""Adapters that have two images."""
ITEMS = ("tower", "all", "whole", "dora")
"""Adapters that embeddings of images depend on."""


@dataclass(frozen=True)
class Family:
    """A family's tiny checkpoint, and what its modules are called."""

    plugin: str
    contract: str
    text: str
    tower: str
    """Linear layers of an encoder, as a regular expression."""
    whole: tuple[str, ...]
    """Modules of an encoder, or behind it, that are saved whole."""
    decoder: str = r".*language_model.*\.(q_proj|v_proj)"
    table: str = "embed_tokens"
    options: Mapping[str, Any] = field(default_factory=dict)

    def configs(self) -> dict[str, dict[str, Any]]:
        """Fields of PEFT's configurations, by adapter."""
        own = {"target_modules": self.decoder, "r": 4}
        return {
            "decoder": own,
            "another": {**own, "r": 8},
            "tower": {"target_modules": self.tower, "r": 4},
            "all": {"target_modules": "all-linear", "r": 3, "lora_alpha": 8},
            "whole": {**own, "modules_to_save": list(self.whole)},
            "dora": {
                "target_modules": rf"({self.decoder}|{self.tower})(?<!patch_embed.proj)",
                "use_dora": True,
                "r": 2,
            },
            "head": {**own, "modules_to_save": ["lm_head", self.table]},
            "tokens": {**own, "trainable_token_indices": list(range(3, 60, 2))},
        }


FAMILIES = {
    "llava": Family(
        "llava", "TestLlava", "USER: <image>\nWhat is this? ASSISTANT:",
        r".*vision_tower.*(q_proj|fc1|out_proj)|.*multi_modal_projector.linear_1",
        ("vision_tower", "multi_modal_projector"),
    ),
    "blip2": Family(
        "blip2", "TestBlip2", "Question: What is this? Answer:",
        r".*vision_model.*(qkv|fc1|projection)|.*qformer.*attention.(query|key)|.*_query.dense",
        ("language_projection",),
    ),
    "fuyu": Family(
        "fuyu", "TestFuyu", "What is this?\n", ".*vision_embed_tokens", ("vision_embed_tokens",),
        r".*language_model.*\.(query_key_value|dense)", "language_model.embed_tokens",
    ),
    "gemma3": Family(
        "gemma3", "TestGemma3", "<start_of_image> What is this?",
        r".*vision_tower.*(q_proj|fc1|out_proj)", ("multi_modal_projector",),
    ),
    "paligemma": Family(
        "paligemma", "TestPaliGemma", "<image>What is this?",
        r".*vision_tower.*(q_proj|fc1|out_proj)|.*multi_modal_projector.linear", ("multi_modal_projector",),
    ),
    "qwen2_5_vl": Family(
        "qwen_vl", "TestQwen2_5VL", "<|vision_start|><|image_pad|><|vision_end|>What is this?",
        r".*visual.*(qkv|gate_proj|proj)|.*visual.merger.mlp.[02]", ("merger",),
        options={"architecture": "Qwen2_5_VLForConditionalGeneration"},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Adapted:
    """A tiny checkpoint with adapters, and what PEFT generates."""

    path: Path
    text: str
    images: list[Any]
    requests: list[tuple[str | None, int]]
    """Adapter and image of each."""
    adapters: Mapping[str, LoRARequest]
    wanted: list[Continuation]


@pytest.fixture(scope="module", params=FAMILIES)
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """One family after the other."""
    family = FAMILIES[request.param]
    return make_adapted(family, family.configs(), tmp_path_factory.mktemp(request.param))


def make_adapted(family: Family, configs: Mapping[str, Mapping[str, Any]], folder: Path) -> Adapted:
    """Write a tiny checkpoint and adapters for it, and generate with PEFT."""
    make = importlib.import_module(f"corellm_{family.plugin}.tiny").make_tiny_checkpoint
    contract = importlib.import_module(f"corellm_{family.plugin}.contract")
    path = make(folder / "model", **dict(family.options))
    reference = getattr(contract, family.contract).reference(path)
    adapters = {
        name: save_adapter(folder / name, reference.model, seed, **config)
        for seed, (name, config) in enumerate(configs.items())
    }
    images = [random_image(40, 30, seed) for seed in (1, 2)]
    requests = [(name, image) for name in (None, *adapters) for image in (0, 1) if image == 0 or name in SECOND]
    wanted = []
    for name in (None, *adapters):
        given = [(family.text, images[image]) for own, image in requests if own == name]
        wanted += wanted_of(reference, None if name is None else adapters[name], given)
    reference.close()
    return Adapted(path, family.text, images, requests, adapters, wanted)


def wanted_of(reference: Reference, adapter: LoRARequest | None, given: Sequence[Any]) -> list[Continuation]:
    """What `generate` gives for texts with images, with an adapter that PEFT reads from its files."""
    base = reference.model
    if adapter is not None:
        reference.model = with_adapter(base, adapter)
    try:
        return [reference.generate(text, {"image": [image]}, {}, LENGTH) for text, image in given]
    finally:
        reference.model = base


def numbers_of(output: Any) -> tuple[list[int], list[float]]:
    """An output's tokens, and their log-probabilities to the last bit."""
    (completion,) = output.outputs
    steps = zip(completion.logprobs, completion.token_ids, strict=True)
    return list(completion.token_ids), [step[token].logprob for step, token in steps]


def prompts_of(adapted: Adapted) -> tuple[list[Any], list[LoRARequest | None]]:
    """Prompts with an image each, and their adapters."""
    prompts = [
        {"prompt": adapted.text, "multi_modal_data": {"image": adapted.images[image]}} for _, image in adapted.requests
    ]
    return prompts, [None if name is None else adapted.adapters[name] for name, _ in adapted.requests]


def engine(adapted: Adapted, **options: Any) -> LLM:
    given = {"dtype": "float32", "max_model_len": 256, "max_loras": 8, "encoder_cache_size": 2048, **options}
    return LLM(str(adapted.path), enable_lora=True, **given)


def require_equal(adapted: Adapted, items: Sequence[str]) -> None:
    """All in one batch; an image is encoded once for all adapters but `items`, which its embeddings depend on."""
    prompts, adapters = prompts_of(adapted)
    with engine(adapted) as llm:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False, lora_request=adapters)
        encoded = llm.engine.scheduler.encoder_cache.misses
    for (name, image), output, want in zip(adapted.requests, outputs, adapted.wanted, strict=True):
        tokens, logprobs = numbers_of(output)
        assert output.prompt_token_ids == want.prompt_token_ids
        assert tokens == want.token_ids, (name, image)
        assert logprobs == pytest.approx(want.logprobs, abs=2e-4), (name, image)
    assert encoded == len({(name if name in items else None, image) for name, image in adapted.requests})
    firsts = [want.logprobs for (_, image), want in zip(adapted.requests, adapted.wanted, strict=True) if image == 0]
    assert len({str(logprobs) for logprobs in firsts}) == 1 + len(adapted.adapters)


def test_tokens_equal_pefts(adapted: Adapted) -> None:
    """Eight adapters and none in one batch."""
    require_equal(adapted, ITEMS)


def test_encoders_that_read_embeddings_of_tokens(tmp_path: Path) -> None:
    """Chameleon's images become tokens: with other embeddings of tokens they are other images."""
    family = Family("chameleon", "TestChameleon", "<image>What is this?", "", ())
    own = {"target_modules": ["q_proj"]}
    configs: dict[str, dict[str, Any]] = {
        "decoder": own,
        "dora": {"target_modules": ["v_proj", "down_proj"], "use_dora": True},
        "tokens": {**own, "trainable_token_indices": list(range(4, 300, 2))},
        "head": {**own, "modules_to_save": ["lm_head"]},
        "table": {**own, "modules_to_save": ["embed_tokens"]},
    }
    require_equal(make_adapted(family, configs, tmp_path), ("tokens", "table"))


@pytest.mark.parametrize(
    "options", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "float32", "quantization": "int8"}], ids=str
)
@pytest.mark.parametrize("adapted", ["llava", "qwen2_5_vl"], indirect=True)
def test_results_are_the_requests_own(adapted: Adapted, options: dict[str, Any]) -> None:
    """Alone and among requests with other adapters, bit for bit; each adapter makes a difference.

    Those without one have the bits of a model that was loaded without.
    """
    if library.unavailable() is not None:
        pytest.skip("torch's products depend on the number of rows")
    prompts, adapters = prompts_of(adapted)
    with engine(adapted, enable_prefix_caching=False, max_num_batched_tokens=64, **options) as llm:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False, lora_request=adapters)
        together = [numbers_of(output) for output in outputs]
        llm.engine.scheduler.encoder_cache.discard_unreferenced()
        for prompt, adapter, numbers in zip(prompts, adapters, together, strict=True):
            (alone,) = llm.generate([prompt], PARAMS, use_tqdm=False, lora_request=adapter)
            assert numbers_of(alone) == numbers
    assert len({str(numbers) for numbers in together}) == len(together)
    with LLM(str(adapted.path), max_model_len=256, **options) as llm:
        for prompt, adapter, numbers in zip(prompts, adapters, together, strict=True):
            if adapter is None:
                assert numbers_of(*llm.generate([prompt], PARAMS, use_tqdm=False)) == numbers


@pytest.mark.parametrize("adapted", ["llava"], indirect=True)
def test_an_engine_in_another_process(adapted: Adapted) -> None:
    """It says what the model takes of adapters, and is told whose items are whose."""

    async def last(llm: ProcessLLM, prompt: Any, adapter: LoRARequest | None) -> list[int]:
        tokens: list[int] = []
        async for output in llm.generate({**prompt, "lora_request": adapter}, PARAMS):
            tokens = list(output.outputs[0].token_ids)
        return tokens

    async def main() -> list[list[int]]:
        llm = ProcessLLM(str(adapted.path), dtype="float32", max_model_len=256, enable_lora=True, max_loras=8)
        try:
            return await asyncio.gather(*(last(llm, *request) for request in zip(*prompts_of(adapted), strict=True)))
        finally:
            llm.close()

    assert asyncio.run(main()) == [want.token_ids for want in adapted.wanted]


def test_whole_modules_are_dropped_with_their_adapter(tiny_llava: Path, tmp_path: Path) -> None:
    """With a place for one adapter, each of three takes it in turn, and base requests are as if there were none."""
    reference = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava)
    saved = {"target_modules": ["q_proj"], "modules_to_save": ["vision_tower", "multi_modal_projector", "lm_head"]}
    adapters = [save_adapter(tmp_path / str(seed), reference, seed, **saved) for seed in range(3)]
    prompt = {"prompt": FAMILIES["llava"].text, "multi_modal_data": {"image": random_image(40, 30, 1)}}
    with LLM(str(tiny_llava), dtype="float32", max_model_len=256, enable_lora=True) as llm:
        first, *others = [
            [numbers_of(*llm.generate([prompt], PARAMS, use_tqdm=False, lora_request=adapter)) for adapter in given]
            for given in ([None, *adapters], [*adapters, None], [None, *adapters[::-1]])
        ]
        assert len({str(numbers) for numbers in first}) == 4
        assert others == [[*first[1:], first[0]], [first[0], *first[:0:-1]]]
        (part,) = (part for part in llm.engine.runner.parts if isinstance(part, Adapters))
        weights = part._weights
        assert {slot for changes in weights._changes.values() for slot in changes} | weights.changed == {1}

"""What adapters change beside factors: embeddings, the output layer, magnitudes, biases; tokens are those of PEFT."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm_kernels.cpu import library
from corellm_testing.reference import Continuation
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.lora.tests.adapters import Adapted, with_adapter
from tests.text_models.parity import PROMPTS

LENGTH = 10
CONFIGS: dict[str, dict[str, Any]] = {
    "embeddings": {"target_modules": ["embed_tokens", "v_proj"], "r": 4},
    "head": {"target_modules": ["lm_head"], "r": 6},
    "both": {"target_modules": ["q_proj", "lm_head", "embed_tokens"], "use_rslora": True, "r": 2},
    "whole": {
        "target_modules": ["q_proj"],
        "modules_to_save": ["embed_tokens", "lm_head"],
        "ensure_weight_tying": True,
    },
    "table": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "layer": {"target_modules": ["q_proj"], "modules_to_save": ["v_proj"]},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": list(range(300, 90, -3))},
    "others": {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [97, 101], "lm_head": [120]}},
    "dora": {"target_modules": ["q_proj", "v_proj", "down_proj", "gate_proj"], "use_dora": True, "r": 3},
    "biases": {"target_modules": ["q_proj"], "bias": "all"},
    "lora_bias": {"target_modules": ["q_proj", "o_proj"], "lora_bias": True},
    "all": {"target_modules": "all-linear", "r": 5},
}
NAMES = (None, *CONFIGS)
ENGINES: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks": {"max_num_batched_tokens": 16, "max_loras": 2, "max_cpu_loras": 3},
    "eager, unfused": {"enforce_eager": True, "fuse_layers": False},
}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """A tiny Llama with biases, and its adapters."""
    folder = tmp_path_factory.mktemp("llama")
    path = make_tiny_checkpoint(
        folder / "model", intermediate_size=96, num_key_value_heads=2, attention_bias=True,
        tie_word_embeddings=request.param,
    )  # fmt: skip
    return Adapted.made(folder, path, transformers.LlamaForCausalLM, CONFIGS)


@pytest.fixture(scope="module")
def wanted(llama: Adapted) -> list[Continuation]:
    """What PEFT generates for one prompt with each adapter."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama.path)
    inputs = tokenizer(PROMPTS[2], return_tensors="pt")
    return llama.wanted([(inputs, name) for name in NAMES], LENGTH)


def generate(llm: LLM, llama: Adapted, *names: str | None) -> list[tuple[list[int], list[float], list[float]]]:
    """Tokens, their log-probabilities and those of the prompt's to the last bit, of requests that run together."""
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    outputs = llm.generate([PROMPTS[2]] * len(names), params, use_tqdm=False, lora_request=llama.requests(names))
    found = []
    for output in outputs:
        (completion,) = output.outputs
        steps = zip(completion.logprobs or (), completion.token_ids, strict=True)
        own = [step[token].logprob for step, token in steps]
        asked = [next(iter(step.values())).logprob for step in (output.prompt_logprobs or ())[1:] if step]
        found.append((list(completion.token_ids), own, asked))
    return found


def engine(llama: Adapted, **options: Any) -> LLM:
    given = {"dtype": "float32", "max_model_len": 120, "max_loras": 12, "enable_lora": True, **options}
    return LLM(str(llama.path), **given)


@pytest.mark.parametrize("name", ENGINES)
def test_tokens_equal_pefts(llama: Adapted, wanted: list[Continuation], name: str) -> None:
    """All in one batch, where steps are captured for those with factors alone."""
    with engine(llama, **ENGINES[name]) as llm:
        for adapter, found, want in zip(NAMES, generate(llm, llama, *NAMES), wanted, strict=True):
            assert found[0] == want.token_ids, adapter
            assert found[1] == pytest.approx(want.logprobs, abs=2e-4), adapter
    assert len({str(want.logprobs) for want in wanted}) == len(NAMES)


def test_a_prompts_log_probabilities(llama: Adapted) -> None:
    """The output layer runs on all rows of a prompt, each prompt with its own adapter."""
    ids = transformers.AutoTokenizer.from_pretrained(llama.path)(PROMPTS[2], return_tensors="pt")["input_ids"]
    with engine(llama) as llm:
        for adapter, (_, _, asked) in zip(NAMES, generate(llm, llama, *NAMES), strict=True):
            model = llama.reference if adapter is None else with_adapter(llama.reference, llama.adapters[adapter])
            with torch.inference_mode():
                rows = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            assert asked == pytest.approx(rows.gather(1, ids[0, 1:, None])[:, 0].tolist(), abs=2e-4), adapter


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_results_are_the_requests_own(llama: Adapted, options: dict[str, Any]) -> None:
    """Alone and among requests with its adapter and others, bit for bit; each adapter makes a difference."""
    if library.unavailable() is not None:
        pytest.skip("torch's products depend on the number of rows")
    with engine(llama, enable_prefix_caching=False, **options) as llm:
        together = generate(llm, llama, *NAMES)
        assert generate(llm, llama, *NAMES, *NAMES, *NAMES[::-1]) == [*together, *together, *together[::-1]]
        for name, numbers in zip(NAMES, together, strict=True):
            assert generate(llm, llama, name) == [numbers], name
    assert len({str(numbers) for numbers in together}) == len(NAMES)


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"dtype": "float32", "quantization": "int8"}], ids=str)
def test_rows_without_an_adapter(llama: Adapted, options: dict[str, Any]) -> None:
    """They have the bits of a model that was loaded without, alone and beside others, also where layers add to sums.

    An adapter with factors alone has its own, before and after one that changes more was loaded.
    """
    if library.unavailable() is not None:
        pytest.skip("torch's products depend on the number of rows")
    with LLM(str(llama.path), max_model_len=120, **options) as llm:
        (plain,) = generate(llm, llama, None)
    with engine(llama, enable_prefix_caching=False, **options) as llm:
        assert generate(llm, llama, None) == [plain]
        first, factors = generate(llm, llama, None, "all")
        assert first == plain != factors
        first, dora, second, again = generate(llm, llama, None, "dora", None, "all")
        assert first == second == plain != dora
        assert again == factors
        assert generate(llm, llama, "dora", "lora_bias", None, "layer", "biases")[2] == plain
        assert generate(llm, llama, None) == [plain]
        assert generate(llm, llama, "dora") == [dora]
        assert generate(llm, llama, "all") == [factors]


def test_drafts_change_nothing(llama: Adapted) -> None:
    """Rows of drafts have their sequence's adapter, also in the embeddings and in the output layer."""
    pytest.importorskip("corellm_speculative")
    if library.unavailable() is not None:
        pytest.skip("torch's products depend on the number of rows")
    with engine(llama) as llm:
        wanted = generate(llm, llama, *NAMES)
    with engine(llama, speculative_config={"method": "ngram", "num_speculative_tokens": 3}) as llm:
        assert generate(llm, llama, *NAMES) == wanted


def test_they_go_on_with_other_weights(llama: Adapted, tmp_path: Path) -> None:
    """As with a load of these weights, also where magnitudes and biases are beside what the model has."""
    config: dict[str, Any] = json.loads((llama.path / "config.json").read_text())
    other = make_tiny_checkpoint(
        tmp_path, seed=1, intermediate_size=96, num_key_value_heads=2, attention_bias=True,
        tie_word_embeddings=config["tie_word_embeddings"],
    )  # fmt: skip
    with engine(replace(llama, path=other)) as fresh:
        wanted = generate(fresh, llama, *NAMES)
    with engine(llama) as llm:
        assert generate(llm, llama, *NAMES) != wanted
        llm.update_weights(other)
        assert generate(llm, llama, *NAMES) == wanted

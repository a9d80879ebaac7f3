"""Configuration and sampling parameters: every value out of range is named with its field and the range."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from corellm.config import EngineConfig
from corellm.errors import ConfigError, InvalidParameterError
from corellm.sampling_params import SamplingParams
from corellm_pooling.params import PoolingParams


def test_flat_arguments_find_their_room() -> None:
    """Each keyword belongs to one room, with defaults for the rest."""
    config = EngineConfig.from_kwargs(
        model="m", block_size=32, max_num_seqs=3, limit_mm_per_prompt={"image": 2}, seed=5
    )
    assert (config.cache.block_size, config.scheduler.max_num_seqs, config.model.seed) == (32, 3, 5)
    assert config.multimodal.limit_mm_per_prompt == {"image": 2}
    assert config.scheduler.enable_chunked_prefill is True


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("half", "float16"), ("float", "float32"), ("float16", "float16"), (torch.float32, "float32"),
        (torch.bfloat16, "bfloat16"), (torch.half, "float16"), ("auto", "auto"),
    ],
)  # fmt: skip
def test_dtypes_under_all_their_names(given: Any, name: str) -> None:
    """Names, short names and torch's own."""
    assert EngineConfig.from_kwargs(model="m", dtype=given).model.dtype == name


def test_torch_has_more_types_than_models_run_in() -> None:
    """Types of torch that models do not run in are refused by name."""
    with pytest.raises(ConfigError, match=r"dtype .* 'int64'"):
        EngineConfig.from_kwargs(model="m", dtype=torch.int64)


def test_item_limits_with_and_without_sizes() -> None:
    """Counts are limits; sizes go to the dummies."""
    given = {"image": {"count": 2, "width": 64, "height": 32}, "video": 1, "audio": {"length": 16000}}
    config = EngineConfig.from_kwargs(model="m", limit_mm_per_prompt=given).multimodal
    assert config.item_limits == {"image": 2, "video": 1}
    assert config.dummy_options == {"image": {"width": 64, "height": 32}, "audio": {"length": 16000}}


def test_unknown_argument_suggests_the_nearest() -> None:
    """A typing error is found at start, not ignored."""
    with pytest.raises(ConfigError, match=r"'max_num_seq'; .* 'max_num_seqs'"):
        EngineConfig.from_kwargs(model="m", max_num_seq=3)
    with pytest.raises(ConfigError, match=r"'zzz'; known: .*block_size"):
        EngineConfig.from_kwargs(model="m", zzz=3)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", "", "^model .*got ''"),
        ("dtype", "int8", "dtype .*auto, float32, bfloat16, float16; got 'int8'"),
        ("max_model_len", 0, "max_model_len .*got 0"),
        ("block_size", True, "block_size .*got True"),
        ("num_kv_blocks", -1, "num_kv_blocks must be"),
        ("kv_cache_memory", 1.5, "kv_cache_memory must be"),
        ("swap_space", -1, "swap_space must be"),
        ("swap_space", float("inf"), "swap_space must be"),
        ("swap_space", "4", "swap_space must be"),
        ("seed", "x", "seed"),
        ("enable_prefix_caching", "no", "enable_prefix_caching .*'no'"),
        ("enable_chunked_prefill", 1, "enable_chunked_prefill"),
        ("max_num_seqs", 0, "max_num_seqs must be"),
        ("scheduling_policy", "lifo", "scheduling_policy .*fcfs, priority"),
        ("preemption_mode", "drop", "preemption_mode .*recompute, swap"),
        ("limit_mm_per_prompt", {"image": -1}, r"limit_mm_per_prompt\['image'\] "),
        (
            "limit_mm_per_prompt",
            {"image": {"count": -1}},
            r"limit_mm_per_prompt\['image'\]\['count'\] ",
        ),
        ("limit_mm_per_prompt", {"image": {"width": 0}}, r"\['width'\] .*got 0"),
        ("limit_mm_per_prompt", {"image": {"num_frames": 2}}, "has no 'num_frames'; known: count, height, width"),
        ("limit_mm_per_prompt", {"audio": {"lenght": 2}}, "has no 'lenght'; did you mean 'length'?"),
        ("tokenizer", "", "tokenizer .*got ''"),
        ("tokenizer", 3, "tokenizer .*got 3"),
        ("hf_overrides", [1], r"hf_overrides .*got \[1\]"),
        ("load_format", "gguf", "load_format .*auto, safetensors, dummy; got 'gguf'"),
        ("generation_config", "best", "generation_config .*auto, none; got 'best'"),
        ("limit_mm_per_prompt", 3, "limit_mm_per_prompt must"),
        ("mm_processor_kwargs", [], "mm_processor_kwargs must"),
        ("mm_processor_kwargs", {"images_kwargs": 5}, r"mm_processor_kwargs\['images_kwargs'\] .*got 5"),
        ("mm_processor_cache_gb", float("nan"), "mm_processor_cache_gb"),
    ],
)
def test_config_out_of_range(field: str, value: Any, message: str) -> None:
    """Field, value and range in one line."""
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_kwargs(**{"model": "m", field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 10**400), ("temperature", 1e31), ("stop_token_ids", [10**5000]), ("logit_bias", {10**5000: 1}),
        ("n", 0), ("n", 1000), ("n", 1.0), ("n", True),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", "hot"),
        ("top_k", -2), ("top_k", 1.5), ("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1), ("min_p", 1.5),
        ("presence_penalty", 2.5), ("frequency_penalty", -3), ("repetition_penalty", 0.0), ("repetition_penalty", 11),
        ("logit_bias", {1: 101}), ("logit_bias", {-1: 1}), ("logit_bias", {"x": 1}), ("logit_bias", [1]),
        ("allowed_token_ids", []), ("allowed_token_ids", [-1]), ("allowed_token_ids", "12"),
        ("bad_words", [""]), ("bad_words", [3]), ("bad_words", ["\ud800"]), ("seed", 1.5), ("seed", 2**63),
        ("logprobs", -2), ("logprobs", 101), ("prompt_logprobs", 1.0), ("truncate_prompt_tokens", 0),
        ("max_tokens", 0), ("max_tokens", "many"), ("min_tokens", -1), ("min_tokens", 17),
        ("stop", ""), ("stop", ["a"] * 65), ("stop", ["a" * 1025]), ("stop", 5), ("stop_token_ids", [1.5]),
        ("ignore_eos", 1), ("skip_special_tokens", None), ("include_stop_str_in_output", "yes"),
        ("spaces_between_special_tokens", 0), ("output_kind", 1), ("truncate_prompt_tokens", 1.5),
    ],
)  # fmt: skip
def test_params_out_of_range(field: str, value: Any) -> None:
    """Each names its field in the message and in `param`."""
    with pytest.raises(InvalidParameterError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("params", "field", "way_out"),
    [
        (SamplingParams, "temprature", "; did you mean 'temperature'?"),
        (SamplingParams, "max_new_tokens", "; did you mean 'max_tokens'?"),
        (SamplingParams, "zzz", "; known: allowed_token_ids, bad_words, "),
        (PoolingParams, "dimension", "; did you mean 'dimensions'?"),
        (PoolingParams, "zzz", "; known: dimensions, task, truncate_prompt_tokens, use_activation"),
    ],
)
def test_unknown_params_suggest_the_nearest(params: type[Any], field: str, way_out: str) -> None:
    """A typo is named together with the right spelling; those for the engine are not offered."""
    with pytest.raises(
        InvalidParameterError, match=re.escape(f"{params.__name__} has no {field!r}{way_out}")
    ) as caught:
        params(**{field: 0})
    assert caught.value.param == field
    assert "token_type_ids" not in str(caught.value)


@pytest.mark.parametrize("params", [SamplingParams, PoolingParams])
def test_params_have_names(params: type[Any]) -> None:
    """A value without one is refused by a typed error, too."""
    with pytest.raises(InvalidParameterError, match=f"{params.__name__} .* by name, got 0.5"):
        params(0.5)


def test_params_are_normalized() -> None:
    """What people write becomes one form."""
    params = SamplingParams(temperature=1e-9, top_k=-1, stop="end", stop_token_ids=[3], logit_bias={"5": 1})
    assert params.greedy
    assert (params.top_k, params.stop, params.stop_token_ids, params.logit_bias) == (0, ("end",), (3,), {5: 1.0})


def test_none_means_nothing() -> None:
    """Scripts that pass None for a list get the default."""
    assert SamplingParams(stop=None, stop_token_ids=None, bad_words=None) == SamplingParams()


def test_params_change_until_they_are_used() -> None:
    """Fields can be assigned; a copy is checked and normalized, shares nothing, and knows no misspelt field."""
    params = SamplingParams(logit_bias={1: 2.0})
    params.stop = "end"
    params.temperature = 0
    copied = params.clone()
    assert (copied.stop, copied.greedy, copied.logit_bias) == (("end",), True, {1: 2.0})
    assert copied.logit_bias is not params.logit_bias
    params.min_tokens = 99
    assert copied.min_tokens == 0
    with pytest.raises(InvalidParameterError, match="min_tokens"):
        params.clone()
    with pytest.raises(AttributeError, match="temprature"):
        params.temprature = 1  # type: ignore[attr-defined]


def test_stop_needs_text() -> None:
    """A stop string cannot be found without detokenizing."""
    with pytest.raises(InvalidParameterError, match="stop needs detokenize=True"):
        SamplingParams(stop="x", detokenize=False)


def test_children_have_their_own_seeds() -> None:
    """`n` seeded completions differ from each other, wrap instead of overflowing, and do not meet -1, which is none."""
    params = SamplingParams(n=3, seed=2**63 - 2)
    seeds = [params.child(i).seed for i in range(3)]
    assert seeds == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert [SamplingParams(n=3, seed=-2).child(i).seed for i in range(3)] == [-2, -3, -4]
    assert [SamplingParams(n=3, seed=-(2**63)).child(i).seed for i in range(2)] == [-(2**63), 2**63 - 1]
    assert SamplingParams(seed=-1).seed is None
    assert all(params.child(i).n == 1 for i in range(3))

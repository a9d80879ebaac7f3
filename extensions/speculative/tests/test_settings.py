"""`speculative_config`: what is wrong in it is refused by name, before weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corellm import LLM
from corellm.config import ModelConfig
from corellm.errors import ConfigError
from corellm.loading.locating import locate
from corellm_speculative.settings import DraftSettings

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "method must be one of ngram, suffix, draft_model, eagle, eagle3, forms; got None"),
        ({"method": "magic"}, "got 'magic'"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, "'draft_model' needs model, .* got None"),
        ({"model": "", "num_speculative_tokens": 3}, "'draft_model' needs model, .* got ''"),
        ({"model": "x"}, "'draft_model' needs num_speculative_tokens, .* from 1 to 64"),
        ({"method": "mtp"}, "heads of the kind 'mtp' are not there; methods that are: ngram, suffix, draft_m"),
        ({"method": "eagle3", "num_speculative_tokens": 3}, "'eagle3' needs model, .* got None"),
        ({"method": "eagle", "model": "x", "suffix_decoding_max_tree_depth": 3}, "not a setting of the method 'eagle'"),
        ({**NGRAM, "model": "x"}, "model is not a setting of the method 'ngram'"),
        (
            {"model": "x", "num_speculative_tokens": 3, "prompt_lookup_max": 2},
            "not a setting of the method 'draft_model'",
        ),
        ({"method": "ngram"}, "'ngram' needs num_speculative_tokens, .* from 1 to 64"),
        ({**NGRAM, "num_speculative_tokens": 65}, "num_speculative_tokens .* got 65"),
        ({**NGRAM, "num_speculative_tokens": True}, "num_speculative_tokens .* got True"),
        ({**NGRAM, "prompt_lookup_min": "2"}, "prompt_lookup_m.. must be an integer .* '2'"),
        ({**NGRAM, "prompt_lookup_min": 4, "prompt_lookup_max": 3}, "prompt_lookup_max must be an integer from 4"),
        ({**NGRAM, "prompt_lookup_maximum": 3}, "no 'prompt_lookup_maximum'; did you mean 'prompt_lookup_max'"),
        ({**NGRAM, "suffix_decoding_max_tree_depth": 3}, "is not a setting of the method 'ngram'"),
        ({"method": "suffix", "prompt_lookup_max": 3}, "is not a setting of the method 'suffix'"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 1}, "suffix_decoding_max_tree_depth must be"),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": -1}, "suffix_decoding_max_cached_requests must"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "from 0 to 1, got 1.5"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": float("nan")}, "got nan"),
        ({"method": "forms", "prompt_lookup_max": 3}, "is not a setting of the method 'forms'"),
        ({"method": "forms", "num_speculative_tokens": 65}, "num_speculative_tokens .* got 65"),
        ("ngram", "speculative_config must be like"),
    ],
)
def test_what_is_wrong_is_named(given: Any, message: str, tiny_llava: Path) -> None:
    """When the model is located."""
    with pytest.raises(ConfigError, match=message):
        locate(ModelConfig(model=str(tiny_llava), speculative_config=given))


def test_defaults_are_vllms() -> None:
    """One of both numbers of tokens to look up stands for the other; `suffix` needs none."""
    found = [
        (settings.prompt_lookup_min, settings.prompt_lookup_max, settings.num_speculative_tokens)
        for given in ({}, {"prompt_lookup_min": 2}, {"prompt_lookup_max": 3}, {"prompt_lookup_min": None})
        for settings in [DraftSettings.of({**NGRAM, **given})]
    ]
    assert found == [(5, 5, 3), (2, 2, 3), (3, 3, 3), (5, 5, 3)]
    assert DraftSettings.of({"method": "suffix"}).num_speculative_tokens == 24


def test_a_model_that_pools_is_refused(tiny_llava: Path) -> None:
    """It generates nothing."""
    with pytest.raises(ConfigError, match="the model generates no tokens"):
        LLM(str(tiny_llava), convert="embed", num_kv_blocks=64, speculative_config=NGRAM)

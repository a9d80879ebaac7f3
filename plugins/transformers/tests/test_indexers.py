"""Models whose indexers choose the tokens that a layer attends to: served for as many tokens as they choose."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, ConfigError
from corellm_transformers.indexers import attend_to_all, limit_positions
from corellm_transformers.tiny import make_tiny_checkpoint
from corellm_transformers.tiny.kinds import KINDS

ARCHITECTURE = "MistralLarge4ForConditionalGeneration"
CHOSEN = 96


def test_as_many_tokens_as_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the last of them outputs are those of `generate`, whose indexers then choose all; more are refused."""
    kind = KINDS[ARCHITECTURE]
    config = deepcopy(dict(kind.config))
    config["text_config"]["index_topk"] = CHOSEN
    monkeypatch.setitem(KINDS, ARCHITECTURE, replace(kind, config=config))
    make_tiny_checkpoint(tmp_path, architecture=ARCHITECTURE)
    prompt = [*range(100, 160)]
    params = SamplingParams(temperature=0, max_tokens=CHOSEN, ignore_eos=True)
    with LLM(str(tmp_path), dtype="float32", max_num_batched_tokens=32) as llm:
        assert llm.engine.max_model_len == CHOSEN
        (ours,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
    found = ours.outputs[0].token_ids
    assert len(prompt) + len(found) == CHOSEN
    model = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    wanted = model.generate(torch.tensor([prompt]), max_new_tokens=len(found), do_sample=False)[0, len(prompt) :]
    assert found == wanted.tolist()
    assert len(set(found)) > 3
    with pytest.raises(ConfigError, match=f"exceeds the {CHOSEN} positions"):
        LLM(str(tmp_path), dtype="float32", max_model_len=CHOSEN + 1)


def test_angles_that_follow_the_number_of_positions() -> None:
    """They would change if there were fewer positions."""
    text: Any = SimpleNamespace(index_topk=64, max_position_embeddings=512, rope_parameters={"rope_type": "dynamic"})
    config: Any = SimpleNamespace(model_type="some", get_text_config=lambda: text)
    with pytest.raises(CheckpointError, match="an indexer chooses"):
        limit_positions(config)
    text.rope_parameters = {"full_attention": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(CheckpointError, match="rotary angles"):
        limit_positions(config)
    text.rope_parameters["full_attention"]["original_max_position_embeddings"] = 128
    limit_positions(config)
    assert text.max_position_embeddings == 64
    limit_positions(config)
    assert text.max_position_embeddings == 64


def test_numbers_that_configurations_say_otherwise() -> None:
    """Blocks of tokens are chosen whole; of groups whose rest is never chosen no number of tokens is all of them."""
    text: Any = SimpleNamespace(index_topk_blocks=4, index_block_size=16, max_position_embeddings=512)
    config: Any = SimpleNamespace(model_type="some", get_text_config=lambda: text)
    limit_positions(config)
    assert text.max_position_embeddings == 64
    text = SimpleNamespace(index_topk=32, index_kpool=4, index_kpool_always_select_tail=False, **vars(text))
    del text.index_topk_blocks
    limit_positions(config)
    assert text.max_position_embeddings == 64
    text.index_kpool_always_select_tail = True
    limit_positions(config)
    assert text.max_position_embeddings == 32


@pytest.mark.parametrize("stated", [{"indexer_budget": 64}, {"index_topk": 64, "index_kpool": 4}])
def test_an_indexer_without_a_number_of_which_it_chooses_all(stated: dict[str, Any]) -> None:
    """No number of tokens is stated at which leaving the indexer out changes nothing."""
    decoder: Any = torch.nn.Sequential(torch.nn.Identity())
    decoder.config = SimpleNamespace(**stated)
    attend_to_all(decoder)
    decoder[0].layer_idx, decoder[0].indexer = 0, torch.nn.Identity()
    with pytest.raises(CheckpointError, match="Sequential attends to tokens that an indexer chooses"):
        attend_to_all(decoder)
    assert decoder[0].indexer is not None

"""Adapters of linear layers whose weights have a row for each input (GPT-2's) give the tokens that PEFT generates."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from corellm.errors import InvalidParameterError
from corellm_kernels.cpu import library
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.lora.tests.adapters import Adapted
from extensions.lora.tests.test_outputs import LENGTH, engine, generate, numbers_of, require_equal
from tests.text_models.parity import PROMPTS

CONFIGS = {
    "all": {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    "whole": {"r": 2, "target_modules": ["c_fc"], "modules_to_save": ["attn.c_proj", "attn.c_attn"]},
    "dora": {"r": 3, "target_modules": ["c_attn", "attn.c_proj"], "fan_in_fan_out": True, "use_dora": True},
}
PARAMETER = {"r": 2, "target_modules": [], "target_parameters": ["attn.c_proj.weight"]}


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_tokens_equal_pefts(tmp_path: Path, quantization: str | None) -> None:
    """In one batch with none, and to the last bit alone; layers are rounded as others are, whatever their weights."""
    path = make_tiny_checkpoint(tmp_path / "model", architecture="GPT2LMHeadModel", n_inner=96)
    adapted = Adapted.made(tmp_path, path, transformers.GPT2LMHeadModel, {**CONFIGS, "parameter": PARAMETER})
    names = (*CONFIGS, None)
    with engine(adapted, quantization=quantization) as llm:
        together = generate(llm, [PROMPTS[2]] * len(names), adapted.requests(names))
        alone = [generate(llm, [PROMPTS[2]], adapted.request(name))[0] for name in names]
        with pytest.raises(InvalidParameterError, match=r"attn\.c_proj has a row for each input; train it"):
            generate(llm, [PROMPTS[2]], adapted.request("parameter"))
        kept = sum(tensor.numel() for tensor in llm.engine.runner.model.state_dict().values())
    if library.unavailable() is None:
        assert [numbers_of(one) for one in alone] == [numbers_of(one) for one in together]
        assert kept < sum(tensor.numel() for tensor in adapted.reference.state_dict().values())
    if quantization is None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        inputs = [(tokenizer(PROMPTS[2], return_tensors="pt"), name) for name in names]
        require_equal(together, adapted.wanted(inputs, LENGTH))
    assert len({str(numbers_of(one)) for one in together}) == len(names)

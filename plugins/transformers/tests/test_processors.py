"""A checkpoint's tokenizer adds to a text what its processor lets it add."""

from __future__ import annotations

from pathlib import Path

import pytest

from corellm.tiny_checkpoints import train_tokenizer, write_json
from corellm_transformers.processors import read_tokenizer


@pytest.mark.parametrize(
    ("model_type", "named", "begun"),
    [("hunyuan_vl", None, False), ("llava", None, True), ("llava", "Lfm2VlProcessor", False), ("llama", None, True)],
)
def test_a_processor_may_leave_the_first_token_to_the_template(
    tmp_path: Path, model_type: str, named: str | None, begun: bool
) -> None:
    """Their class is the one that the files name, else that of the type of model, if there is one."""
    train_tokenizer([], bos="<s>", add_bos=True).save_pretrained(tmp_path)
    stated = {} if named is None else {"processor_config.json": {"processor_class": named}}
    write_json(tmp_path, {"config.json": {"model_type": model_type}, **stated})
    tokenizer = read_tokenizer(tmp_path)
    plain = tokenizer("<s>a", add_special_tokens=False)["input_ids"]
    assert tokenizer("a")["input_ids"] == (plain if begun else plain[1:])
    assert tokenizer("<s>a")["input_ids"] == ([plain[0]] if begun else []) + plain

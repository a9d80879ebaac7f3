"""A release of transformers that changes a model's code works, or is refused at load: its outputs are never others'.

Each change imitates one that a release might bring: in the source of transformers' Llama, of which a copy is loaded.
The reference is that copy's own `generate`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from transformers.models.llama import modeling_llama

from corellm.errors import CheckpointError, ContractError
from corellm_testing.tiny_text import make_tiny_checkpoint
from tests.text_models.parity import Model, generated

_NAME = "transformers.models.llama.modeling_imitated"
Edits = Sequence[tuple[str, str]]

_SCALING = "scaling=self.scaling,"
_RESULT = "residual + hidden_states\n        return hidden_states"
_CACHE, _MEMORY = "        cache: Cache | None = None,\n", "        memory: Cache | None = None,\n"
WORKS: dict[str, Edits] = {
    "as it is": [],
    "layers take the cache by another name": [
        ('@deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")', ""),
        (f"{_CACHE}        use_cache: bool | None = False", f"{_MEMORY}        use_cache: bool | None = False"),
        (f"{_CACHE}        **kwargs", f"{_MEMORY}        **kwargs"),
        ("            cache=cache,\n            use_cache", "            memory=memory,\n            use_cache"),
        ("        if cache is not None:\n            key", "        if memory is not None:\n            key"),
        ("= cache.update(", "= memory.update("),
        ("                cache=cache,\n", "                memory=cache,\n"),
    ],
    "layers return more": [
        (_RESULT, f"{_RESULT}, None"),
        ("hidden_states = decoder_layer(", "hidden_states, _ = decoder_layer("),
    ],
    "queries are scaled by the layer": [
        ("self.q_proj(hidden_states)", "(self.q_proj(hidden_states) * self.scaling)"),
        (_SCALING, "scaling=1.0,"),
    ],
    "the last norm is the output layer's": [
        ("hidden_states = self.norm(hidden_states)", ""),
        ("self.lm_head(hidden_states)", "self.lm_head(self.model.norm(hidden_states))"),
    ],
}
"""What the engine does not look at, or asks for as before."""
REFUSED: dict[str, Edits] = {
    "attention takes an argument that nobody knows": [(_SCALING, f"{_SCALING} decay=0.5,")],
    "queries, keys and values come with heads last": [(".view(hidden_shape).transpose(1, 2)", ".view(hidden_shape)")],
    "attention rotates": [
        ("query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)", ""),
        (_SCALING, f"{_SCALING} rotation=(cos, sin),"),
    ],
    "embeddings have another name": [("inputs_embeds", "embeddings")],
    "further arguments do not reach attention": [(f"{_SCALING}\n            **kwargs,", _SCALING)],
    "a mask is made by the model": [
        ("attention_mask=causal_mask,", "attention_mask=inputs_embeds.new_zeros(1, 1, 1, 1),")
    ],
    "layers mix tokens behind attention": [("self.mlp(hidden_states)", "self.mlp(hidden_states.cumsum(1))")],
    "layers mix tokens before attention": [
        ("self.v_proj(hidden_states)", "(self.v_proj(hidden_states) + self.v_proj(hidden_states.roll(1, 1)))"),
    ],
}
"""What the engine would compute otherwise, or cannot call."""


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Edits], Path]:
    """Make a tiny checkpoint, for which transformers' module is changed as given; each edit must change something."""

    def make(edits: Edits) -> Path:
        source = inspect.getsource(modeling_llama)
        for old, new in edits:
            assert old in source, old
            source = source.replace(old, new)
        file = tmp_path / "modeling_imitated.py"
        file.write_text(source, encoding="utf-8")
        spec = spec_from_file_location(_NAME, file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, _NAME, module)
        spec.loader.exec_module(module)
        monkeypatch.setattr("transformers.LlamaForCausalLM", module.LlamaForCausalLM)
        return make_tiny_checkpoint(
            tmp_path / "checkpoint", architecture="LlamaForCausalLM", intermediate_size=96, num_key_value_heads=4
        )

    return make


@pytest.mark.parametrize("change", WORKS)
def test_a_change_that_the_engine_need_not_know(checkpoint: Callable[[Edits], Path], change: str) -> None:
    path = checkpoint(WORKS[change])
    model = Model(path, generated("LlamaForCausalLM", path))
    with model.engine() as llm:
        model.require_equal(llm)


@pytest.mark.parametrize("change", REFUSED)
def test_a_change_that_the_engine_cannot_follow_is_refused(checkpoint: Callable[[Edits], Path], change: str) -> None:
    path = checkpoint(REFUSED[change])
    model = Model(path, [])
    with pytest.raises((CheckpointError, ContractError), match=r"Llama|modeling_imitated"):
        model.engine()

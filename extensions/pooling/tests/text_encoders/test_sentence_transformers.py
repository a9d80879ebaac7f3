"""What sentence-transformers writes beside a checkpoint does here what it does there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from corellm import LLM
from corellm.errors import CheckpointError, InvalidParameterError, PromptError
from corellm_pooling.sentence_transformers import read_stated_pooling
from extensions.pooling.tests.text_encoders.checkpoints import TEXTS, make_tiny_encoder

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 4}


def saved(path: Path, *modes: str, projects: bool = False, normalizes: bool = False, **options: Any) -> Any:
    """Write a tiny sentence-transformer and return it."""
    make_tiny_encoder(path / "bert", "BertModel", type_vocab_size=2)
    width = 32 * len(modes)
    modules: list[Any] = [Transformer(str(path / "bert"), max_seq_length=40), Pooling(32, pooling_mode=modes)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        modules += [Dense(width, 24, activation_function=torch.nn.Tanh())] * projects
    model = SentenceTransformer(modules=modules + [Normalize()] * normalizes, device="cpu", **options)
    model.save(str(path / "saved"))
    return model


def check_equal(llm: LLM, model: Any, texts: tuple[str, ...], **named: Any) -> None:
    """Compare embeddings."""
    found = [output.outputs.embedding for output in llm.embed(list(texts), use_tqdm=False, **named)]
    expected = model.encode(list(texts), show_progress_bar=False, **named)
    np.testing.assert_allclose(np.array(found), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "modes",
    [("cls",), ("mean",), ("max",), ("mean_sqrt_len_tokens",), ("weightedmean",), ("lasttoken",), ("mean", "max")],
)
def test_pooling(modes: tuple[str, ...], tmp_path: Path) -> None:
    """Every mode, and two joined; projected and normalised or not."""
    joined = len(modes) > 1
    model = saved(tmp_path, *modes, projects=joined, normalizes=joined)
    with LLM(tmp_path / "saved", **OPTIONS) as llm:
        assert llm.engine.max_model_len == 40
        check_equal(llm, model, TEXTS)
        if joined:
            with pytest.raises(InvalidParameterError, match="task 'token_embed'"):
                llm.encode("Why?", pooling_task="token_embed", use_tqdm=False)


def test_prompts(tmp_path: Path) -> None:
    """The default one is put before every text, a named one instead of it."""
    prompts = {"query": "One two ", "passage": "What? "}
    model = saved(tmp_path, "mean", prompts=prompts, default_prompt_name="passage")
    with LLM(tmp_path / "saved", **OPTIONS) as llm:
        check_equal(llm, model, TEXTS)
        check_equal(llm, model, TEXTS, prompt_name="query")
        with pytest.raises(PromptError, match=r"'title'.*'document', 'passage', 'query'"):
            llm.embed("Why?", prompt_name="title", use_tqdm=False)
        with pytest.raises(PromptError, match="prompt_name"):
            llm.embed([[5, 6]], prompt_name="query", use_tqdm=False)


def test_an_empty_text_among_others(tmp_path: Path) -> None:
    """Is embedded as its special tokens, behind the default prompt if there is one."""
    for name, options in (("plain", {}), ("prompts", {"prompts": {"query": "One "}, "default_prompt_name": "query"})):
        model = saved(tmp_path / name, "mean", **options)
        with LLM(tmp_path / name / "saved", **OPTIONS) as llm:
            check_equal(llm, model, ("What?", "", "One two"))


def test_lower_case(tmp_path: Path) -> None:
    """Texts are lowered where `sentence_bert_config.json` says so."""
    saved(tmp_path, "mean")
    file = tmp_path / "saved" / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_lower_case": True}))
    model = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    with LLM(tmp_path / "saved", **OPTIONS) as llm:
        check_equal(llm, model, ("WHAT? A Red Circle",))


def test_a_cross_encoder(tmp_path: Path) -> None:
    """Scores of pairs, with the activation that it saved."""
    make_tiny_encoder(tmp_path / "bert", "BertForSequenceClassification", num_labels=1, type_vocab_size=2)
    model = CrossEncoder(str(tmp_path / "bert"), device="cpu")
    model.save(str(tmp_path / "saved"))
    expected = model.predict([("What is red?", text) for text in TEXTS], show_progress_bar=False)
    with LLM(tmp_path / "saved", **OPTIONS) as llm:
        found = [output.outputs.score for output in llm.score("What is red?", list(TEXTS), use_tqdm=False)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("folder", "changes", "words"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "median"}, r"pooling by median cannot be run; cls, max,"),
        ("1_Pooling/config.json", {"pooling_mode": None, "pooling_mode_odd": True}, "pooling by odd cannot be run"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt=false"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts must"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "default_prompt_name is 'x', which"),
    ],
)
def test_what_cannot_be_run_is_refused(folder: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    """At load, with the file and the reason."""
    saved(tmp_path, "mean", prompts={"query": "One "})
    file = tmp_path / "saved" / folder
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(CheckpointError, match=words) as raised:
        read_stated_pooling(tmp_path / "saved")
    assert file.name in str(raised.value)

"""Classes and scores of encoders: equal to the class's own forward pass on one prompt, or pair, alone."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from corellm import LLM, AsyncLLM, PoolingParams
from corellm.errors import CheckpointError, ConfigError, InvalidParameterError, PromptError
from extensions.pooling.tests.text_encoders.checkpoints import CLOSE, TEXTS, make_tiny_encoder

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 8}
KINDS: dict[str, dict[str, Any]] = {
    "BertForSequenceClassification": {"type_vocab_size": 2},
    "RobertaForSequenceClassification": {"pad_token_id": 1},
    "DistilBertForSequenceClassification": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "ModernBertForSequenceClassification": {"local_attention": 8, "classifier_pooling": "mean"},
    "MPNetForSequenceClassification": {"pad_token_id": 1},
    "ElectraForSequenceClassification": {"embedding_size": 16},
}
"""Heads on what the encoder's pooler makes of the first token, on that token itself, on the mean."""


def logits_of(path: Path, architecture: str, **inputs: Any) -> torch.Tensor:
    """Logits of one prompt by transformers."""
    model = getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(**inputs).logits[0]
    return logits


@pytest.mark.parametrize("architecture", KINDS)
def test_classes_equal_transformers(architecture: str, tmp_path: Path) -> None:
    """Every prompt of a batch has transformers' classes."""
    make_tiny_encoder(tmp_path, architecture, num_labels=3, **KINDS[architecture])
    with LLM(tmp_path, **OPTIONS) as llm:
        outputs = llm.classify(list(TEXTS), use_tqdm=False)
        with pytest.raises(InvalidParameterError, match="one label"):
            llm.score("What?", "This", use_tqdm=False)
    for output in outputs:
        logits = logits_of(tmp_path, architecture, input_ids=torch.tensor([output.prompt_token_ids]))
        torch.testing.assert_close(torch.as_tensor(output.outputs.probs), logits.softmax(-1), **CLOSE)


def test_classes_of_tokens(tmp_path: Path) -> None:
    """A head of every token has that task alone."""
    make_tiny_encoder(tmp_path, "BertForTokenClassification", num_labels=3, type_vocab_size=2)
    with LLM(tmp_path, **OPTIONS) as llm:
        (output,) = llm.encode(TEXTS[0], pooling_task="token_classify", use_tqdm=False)
        with pytest.raises(InvalidParameterError, match=r"'classify': .* token_classify"):
            llm.classify(TEXTS[0], use_tqdm=False)
    logits = logits_of(tmp_path, "BertForTokenClassification", input_ids=torch.tensor([output.prompt_token_ids]))
    torch.testing.assert_close(torch.as_tensor(output.outputs.data), logits.softmax(-1), **CLOSE)


@pytest.mark.parametrize("kept", [None, 8, 11])
def test_a_cross_encoder_reads_pairs(kept: int | None, tmp_path: Path) -> None:
    """Tokens, types and truncation are those of the tokenizer; the score is the sigmoid of the logit."""
    make_tiny_encoder(tmp_path, "BertForSequenceClassification", num_labels=1, type_vocab_size=2)
    documents = ["A red circle is above", "One", "Why is it a square? " * 2]
    with LLM(tmp_path, **OPTIONS) as llm:
        outputs = llm.score("What is red?", documents, truncate_prompt_tokens=kept, use_tqdm=False)
        tokenizer = llm.get_tokenizer()
    for document, output in zip(documents, outputs, strict=True):
        cut = {} if kept is None else {"truncation": "longest_first", "max_length": kept}
        inputs = tokenizer("What is red?", document, return_tensors="pt", **cut)
        assert output.prompt_token_ids == inputs["input_ids"][0].tolist()
        assert inputs["token_type_ids"].any()
        logit = logits_of(tmp_path, "BertForSequenceClassification", **inputs)
        torch.testing.assert_close(torch.tensor([output.outputs.score]), logit.sigmoid(), **CLOSE)


def test_types_of_tokens_change_the_score(tmp_path: Path) -> None:
    """A pair given as token ids needs their types; in a template both texts are one."""
    make_tiny_encoder(tmp_path, "BertForSequenceClassification", num_labels=1, type_vocab_size=2)
    with LLM(tmp_path, **OPTIONS) as llm:
        (pair,) = llm.score("What?", "Why", use_tqdm=False)
        (joined,) = llm.score("What?", "Why", template="{query}[SEP]{document}", use_tqdm=False)
        assert joined.prompt_token_ids == pair.prompt_token_ids
        assert abs(joined.outputs.score - pair.outputs.score) > 1e-4
        with pytest.raises(PromptError, match=r"text_pair .* got 3"):
            llm.encode({"prompt": "What?", "text_pair": 3}, pooling_task="score", use_tqdm=False)
        with pytest.raises(InvalidParameterError, match=r"special tokens .* 3"):
            llm.score("What?", "Why", truncate_prompt_tokens=2, use_tqdm=False)
    assert PoolingParams(task="score", token_type_ids=[0, 1]) == PoolingParams(task="score")  # one call of the head


def test_wrong_heads_are_refused(tmp_path: Path) -> None:
    """A pooling type that is not the head's; a head that was not saved."""
    path = make_tiny_encoder(tmp_path, "BertForSequenceClassification", type_vocab_size=2)
    with pytest.raises(ConfigError, match=r"pooling_type='MEAN': .* BertForSequenceClassification takes CLS"):
        LLM(path, pooler_config={"pooling_type": "MEAN"}, **OPTIONS)
    bare = make_tiny_encoder(tmp_path / "bare", "BertModel", type_vocab_size=2)
    with pytest.raises(CheckpointError, match=r"classifier\.bias"):
        LLM(bare, hf_overrides={"architectures": ["BertForSequenceClassification"]}, **OPTIONS)


def test_surplus_weights_are_those_of_decoders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pooler that the class runs without, and positions of older files: a warning; a layer too many: refused."""
    architecture = "RobertaForSequenceClassification"
    make_tiny_encoder(tmp_path, architecture, num_labels=1, pad_token_id=1)
    weights, file = load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors"
    surplus = {"roberta.pooler.dense.weight": torch.zeros(32, 32), "roberta.embeddings.position_ids": torch.zeros(1, 9)}
    save_file(weights | surplus, file, {"format": "pt"})
    for options, left_out in (({}, "roberta.pooler.dense.weight"), ({"convert": "embed"}, "classifier.dense.bias")):
        caplog.clear()
        LLM(tmp_path, **options, **OPTIONS).close()
        (told,) = [record.getMessage() for record in caplog.records if "are not used" in record.getMessage()]
        assert left_out in told
    save_file(weights | {"roberta.encoder.layer.2.output.dense.bias": torch.zeros(32)}, file, {"format": "pt"})
    for options in ({}, {"convert": "embed"}):
        with pytest.raises(CheckpointError, match=r"no place .*(roberta\.)?encoder\.layer\.2"):
            LLM(tmp_path, **options, **OPTIONS)


def test_pairs_at_once_through_async_llm(tmp_path: Path) -> None:
    """Requests side by side equal each pair alone."""
    make_tiny_encoder(tmp_path, "BertForSequenceClassification", num_labels=1, type_vocab_size=2)
    with LLM(tmp_path, **OPTIONS) as llm:
        expected = [output.outputs.score for output in llm.score("What?", list(TEXTS), use_tqdm=False)]

    async def score(served: AsyncLLM, document: str) -> float:
        params = PoolingParams(task="score")
        (output,) = [o async for o in served.encode({"prompt": "What?", "text_pair": document}, params)]
        return float(output.outputs.data[0])

    async def run() -> list[float]:
        with closing(AsyncLLM(tmp_path, **OPTIONS)) as served:
            return await asyncio.gather(*(score(served, text) for text in TEXTS))

    assert asyncio.run(run()) == pytest.approx(expected, abs=1e-5)

"""ColBERT checkpoints give the vectors and scores that sentence-transformers' `MultiVectorEncoder` gives of them."""

from __future__ import annotations

import json
import logging
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import MultiVectorEncoder

from corellm import LLM
from corellm.errors import CheckpointError, ConfigError, InvalidParameterError, PromptError, PromptTooLongError
from corellm_pooling.sentence_transformers import read_stated_pooling
from extensions.pooling.tests.text_encoders.colbert import (
    DENSE,
    DOCUMENTS,
    LENGTHS,
    QUERIES,
    WIDTH,
    make_colbert_tokenizer,
    make_pylate,
    make_stanford,
    random_projection,
)

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 4}
LONG = "a red square above " * 20


def vectors(llm: LLM, texts: Sequence[Any], side: str | None, **options: Any) -> list[np.ndarray[Any, Any]]:
    """The vectors of texts."""
    outputs = llm.encode(list(texts), pooling_task="token_embed", prompt_name=side, use_tqdm=False, **options)
    return [output.outputs.data for output in outputs]


def check_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compare the vectors of several texts."""
    assert [one.shape for one in found] == [tuple(one.shape) for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=0, atol=1e-5)


def check_as_published(path: Path) -> None:
    """Compare vectors of both sides, of short and of cut texts, and the scores, with the published client's."""
    model = MultiVectorEncoder(str(path), device="cpu")
    with LLM(path, **OPTIONS) as llm:
        queries, documents = ([*texts, LONG] for texts in (QUERIES, DOCUMENTS))
        of_queries = model.encode_query(queries, show_progress_bar=False)
        of_documents = model.encode_document(documents, show_progress_bar=False)
        check_equal(vectors(llm, queries, "query", truncate_prompt_tokens=-1), of_queries)
        check_equal(vectors(llm, documents, "document", truncate_prompt_tokens=-1), of_documents)
        scores = model.similarity(of_queries, of_documents)
        for index, query in enumerate(queries):
            outputs = llm.score(query, documents, truncate_prompt_tokens=-1, use_tqdm=False)
            np.testing.assert_allclose([output.outputs.score for output in outputs], scores[index], atol=1e-4)


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False},
        {"skiplist_words": None, "query_length": None, "document_length": 20},
        {"skiplist_words": ["red", "not a word"]},
        {"prompts": {"query": "red: ", "document": "[D] is "}},
        {"query_prefix": "", "document_prefix": "is "},
        {"query_prefix": "[unused0]", "document_prefix": "[unused1]"},
    ],
    ids=str,
)
def test_what_pylate_states(stated: dict[str, Any], tmp_path: Path) -> None:
    """Marks, lengths, the tokens that fill queries up, and the words that have no vector."""
    check_as_published(make_pylate(tmp_path, **stated))


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("RobertaModel", {}),  # positions begin behind padding's
        ("DistilBertModel", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}),
        ("ModernBertModel", {"local_attention": 8, "num_hidden_layers": 3, "global_attn_every_n_layers": 3}),
        ("DebertaV2Model", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),  # runs padded
    ],
)
def test_other_encoders(architecture: str, config: dict[str, Any], tmp_path: Path) -> None:
    """Tokens that fill a query up are not seen, also where attention has a window or prompts are padded."""
    check_as_published(make_pylate(tmp_path, architecture, encoder=config))


def test_a_decoder(tmp_path: Path) -> None:
    """Is run where all tokens see those that fill a query up; where they must not, it is refused."""
    sizes = {"num_key_value_heads": 2, "head_dim": 8}
    check_as_published(make_pylate(tmp_path / "seen", "LlamaModel", encoder=sizes, attend_to_expansion_tokens=True))
    with pytest.raises(CheckpointError, match="encoders"):
        LLM(make_pylate(tmp_path / "unseen", "LlamaModel", encoder=sizes), **OPTIONS)


@pytest.mark.parametrize(
    "metadata", [{}, {"attend_to_mask_tokens": True, "mask_punctuation": False, "query_maxlen": 20}], ids=str
)
def test_stanford(metadata: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The projection among the encoder's weights is used, and nobody is told that it is not."""
    with caplog.at_level(logging.WARNING, "corellm"):
        check_as_published(make_stanford(tmp_path, **metadata))
    assert "linear.weight" not in caplog.text


def test_projections_with_residuals(tmp_path: Path) -> None:
    """Two, one of which keeps the width."""
    path = make_pylate(tmp_path)
    modules = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(
        json.dumps([*modules, {**modules[-1], "idx": 2, "name": "2", "path": "2_Dense"}])
    )
    weights = {"linear.weight": random_projection(32, 32), "linear.bias": random_projection(32)}
    others = {"linear.weight": random_projection(WIDTH, 32), "residual.weight": random_projection(WIDTH, 32) / 2}
    (path / "2_Dense").mkdir()
    for folder, tensors, changes in (
        (
            "1_Dense",
            weights,
            {"out_features": 32, "bias": True, "activation_function": "torch.nn.modules.activation.GELU"},
        ),
        ("2_Dense", others, {}),
    ):
        (path / folder / "config.json").write_text(json.dumps({**DENSE, **changes, "use_residual": True}))
        save_file(tensors, path / folder / "model.safetensors")
    check_as_published(path)


@pytest.mark.parametrize("has_metadata", [True, False])
def test_an_override_does_not_drop_the_projection(has_metadata: bool, tmp_path: Path) -> None:
    """Loaded as a plain `BertModel`, it still gives vectors of the projection's width."""
    path = make_stanford(tmp_path)
    if not has_metadata:
        (path / "artifact.metadata").unlink()
    with LLM(path, hf_overrides={"architectures": ["BertModel"]}, **OPTIONS) as llm:
        (found,) = vectors(llm, ["red"], "document")
        assert found.shape[1] == WIDTH


def test_by_hand(tmp_path: Path) -> None:
    """A query and a document in the steps of the paper: marks, masks, the encoder, the projection, lengths of one."""
    path = make_stanford(tmp_path)
    bert, tokenizer = transformers.BertModel.from_pretrained(path), make_colbert_tokenizer()
    name = tokenizer.convert_tokens_to_ids
    query = name(["[CLS]", "[unused0]", "red", "?", "[SEP]"]) + [name("[MASK]")] * (LENGTHS["query_length"] - 5)
    document = name(["[CLS]", "[unused1]", "a", "red", "!", "[SEP]"])

    def projected(ids: list[int], seen: int) -> torch.Tensor:
        mask = torch.tensor([[1] * seen + [0] * (len(ids) - seen)])
        with torch.inference_mode():
            hidden = bert(input_ids=torch.tensor([ids]), attention_mask=mask)[0][0]
        return torch.nn.functional.normalize(hidden @ random_projection(WIDTH, 32).T, dim=-1)

    of_query, of_document = projected(query, 5), projected(document, 6)[[0, 1, 2, 3, 5]]
    with LLM(path, **OPTIONS) as llm:
        check_equal(vectors(llm, ["Red?"], "query"), [of_query])
        check_equal(vectors(llm, ["A red!"], "document"), [of_document])
        (output,) = llm.score("Red?", "A red!", use_tqdm=False)
        assert output.outputs.score == pytest.approx(float((of_query @ of_document.T).amax(1).sum()), abs=1e-4)
        assert output.prompt_token_ids == query + document
        (same,) = llm.score("red", "red", use_tqdm=False)  # one string, and yet a query and a document
        assert same.outputs.score == pytest.approx(
            float((vectors(llm, ["red"], "query")[0] @ vectors(llm, ["red"], "document")[0].T).max(1).sum()), abs=1e-4
        )
        check_equal(vectors(llm, [document], None), [projected(document, 6)])  # tokens are taken as they are


@pytest.mark.parametrize("expansion", [None, {"strategy": "min", "attend": True, "length": 9, "token": "[SEP]"}])
def test_saved_by_sentence_transformers(expansion: dict[str, Any] | None, tmp_path: Path) -> None:
    """The same in the layout of sentence-transformers' own."""
    model = MultiVectorEncoder(str(make_pylate(tmp_path / "pylate")), device="cpu")
    model[0].query_expansion, model[0].query_length = expansion, 12
    model[2].skiplist_tasks = ["query", "document"]
    model.save(str(tmp_path / "saved"))
    check_as_published(tmp_path / "saved")


def test_results_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Queries of equal length, of which different parts are seen, among documents."""
    with LLM(make_pylate(tmp_path), dtype="float32", max_num_seqs=16) as llm:
        prompts = [{"prompt": text, "prompt_name": "query"} for text in QUERIES]
        prompts += [{"prompt": text, "prompt_name": "document"} for text in DOCUMENTS]
        together = vectors(llm, prompts, None, truncate_prompt_tokens=-1)
        for prompt, found in zip(prompts, together, strict=True):
            (alone,) = vectors(llm, [prompt], None, truncate_prompt_tokens=-1)
            np.testing.assert_array_equal(alone, found)


def test_requests_that_are_refused(tmp_path: Path) -> None:
    """Texts of an unknown side, texts that are too long, and vectors of whole texts."""
    with LLM(make_pylate(tmp_path), **OPTIONS) as llm:
        for name in (None, "title"):
            with pytest.raises(PromptError, match="'query'"):
                vectors(llm, ["red"], name)
        for side, length in (("query", 14), ("document", 30)):
            with pytest.raises(PromptTooLongError, match=str(length)):
                vectors(llm, [LONG], side)
        assert len(vectors(llm, [LONG], "document", truncate_prompt_tokens=10)[0]) == 10
        assert len(vectors(llm, [LONG], "query", truncate_prompt_tokens=10)[0]) == LENGTHS["query_length"]
        with pytest.raises(PromptError, match="text_pair"):
            vectors(llm, [{"prompt": "red", "text_pair": "red", "prompt_name": "query"}], None)
        conversation = [{"role": "user", "content": "red"}]
        for call in (lambda: vectors(llm, [conversation], None), lambda: llm.score(conversation, "red")):
            with pytest.raises(PromptError, match="ColBERT"):
                call()
        for call in (lambda: llm.embed("red"), lambda: llm.score("red", "red", late_interaction=False)):
            with pytest.raises(InvalidParameterError, match="token_embed"):
                call()


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("config_sentence_transformers.json", {"query_length": 0}, "query_length"),
        ("config_sentence_transformers.json", {"query_length": 2_000_000_000}, "2000000000"),
        ("sentence_bert_config.json", {"max_seq_length": "512"}, "max_seq_length"),
        ("config_sentence_transformers.json", {"query_prefix": 5}, "query_prefix"),
        ("config_sentence_transformers.json", {"skiplist_words": "?!"}, "skiplist_words"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "meanmaxsim"}, "meanmaxsim"),
        ("1_Dense/config.json", {"use_residual": True}, "1_Dense"),
        ("artifact.metadata", {"similarity": "l2"}, "similarity"),
        ("artifact.metadata", {"interaction": "flipr"}, "interaction"),
        ("config_sentence_transformers.json", {"skiplist_words": ["[SEP]"]}, "[SEP]"),
    ],
)
def test_checkpoints_that_are_refused(file: str, changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    """At load, with what is at fault."""
    path = make_stanford(tmp_path) if file == "artifact.metadata" else make_pylate(tmp_path)
    (path / file).write_text(json.dumps(json.loads((path / file).read_text()) | changes))
    with pytest.raises(CheckpointError) as raised:
        LLM(path, **OPTIONS)
    assert named in str(raised.value)


@pytest.mark.parametrize("key", ["query_prefix", "document_prefix", "document_length"])
def test_what_pylate_always_states(key: str, tmp_path: Path) -> None:
    """Is not guessed where it is absent."""
    with pytest.raises(CheckpointError, match=key):
        LLM(make_pylate(tmp_path, **{key: None}), **OPTIONS)


def test_a_tokenizer_that_begins_no_text(tmp_path: Path) -> None:
    """Leaves no place for the mark, which comes behind the beginning."""
    path = make_pylate(tmp_path)
    content = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    with pytest.raises(CheckpointError, match="mark"):
        LLM(path, **OPTIONS)


@pytest.mark.parametrize("shape", [(1, 32), (WIDTH, 31)])
def test_a_residual_of_another_shape(shape: tuple[int, int], tmp_path: Path) -> None:
    """Is not spread over the outputs."""
    path = make_pylate(tmp_path)
    (path / "1_Dense" / "config.json").write_text(json.dumps({**DENSE, "use_residual": True}))
    tensors = {"linear.weight": random_projection(WIDTH, 32), "residual.weight": random_projection(*shape)}
    save_file(tensors, path / "1_Dense" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"residual\.weight"):
        LLM(path, **OPTIONS)


def test_a_prompt_of_neither_side_is_refused(tmp_path: Path) -> None:
    """The checkpoint states a text for it, and not how it is read; nor may it stand on the other side."""
    with LLM(make_pylate(tmp_path, prompts={"passage": "p: "}), **OPTIONS) as llm:
        for name in ("passage", None):
            with pytest.raises(PromptError) as refused:
                vectors(llm, ["red"], name)
            assert refused.value.param == "prompt_name"
        with pytest.raises(PromptError, match="'document'"):
            llm.score({"prompt": "red", "prompt_name": "document"}, "blue", use_tqdm=False)
        (one,) = llm.score({"prompt": "red", "prompt_name": None}, "blue", use_tqdm=False)
        (other,) = llm.score("red", "blue", use_tqdm=False)
        assert one.outputs.score == other.outputs.score


def test_a_projection_that_is_absent(tmp_path: Path) -> None:
    """Is not replaced by none."""
    path = make_stanford(tmp_path)
    transformers.BertModel.from_pretrained(path).save_pretrained(path)  # without the projection
    (path / "config.json").write_text(
        json.dumps(json.loads((path / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]})
    )
    with pytest.raises(CheckpointError, match=r"linear\.weight"):
        LLM(path, **OPTIONS)


def test_a_pooling_type_of_the_operator_is_refused(tmp_path: Path) -> None:
    """There is no vector of a whole text to make in another way."""
    with pytest.raises(ConfigError, match="pooling_type"):
        LLM(make_pylate(tmp_path), pooler_config={"pooling_type": "MEAN"}, **OPTIONS)


def test_defaults_of_stanford(tmp_path: Path) -> None:
    """Without `artifact.metadata`: its own."""
    path = make_stanford(tmp_path)
    (path / "artifact.metadata").unlink()
    stated = read_stated_pooling(path)
    assert stated is not None
    assert stated.late is not None
    assert stated.late.filling is not None
    assert stated.prompts == {"query": "[unused0] ", "document": "[unused1] "}
    assert stated.late.filling.length == 32
    assert stated.late.skipped == {"document": tuple(string.punctuation)}

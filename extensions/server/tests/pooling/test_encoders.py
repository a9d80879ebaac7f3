"""Encoder-only models behind a server give what `LLM` gives: through the engine's process, pairs with their types.

What needs no process of its own has none.
"""

from __future__ import annotations

import json
from pathlib import Path

from corellm import LLM, AsyncLLM
from corellm.engine.process.client import ProcessLLM
from extensions.pooling.tests.text_encoders.checkpoints import TEXTS, make_tiny_encoder
from extensions.pooling.tests.text_encoders.colbert import DOCUMENTS, make_pylate
from extensions.server.tests.conftest import MODEL, serving, user
from extensions.server.tests.pooling.conftest import ask
from extensions.server.tests.pooling.test_equality import close
from extensions.server.tests.test_promises import error_of


def test_embeddings(tmp_path: Path) -> None:
    """Texts of several lengths have the embeddings of `LLM`."""
    path = str(make_tiny_encoder(tmp_path, "BertModel", type_vocab_size=2))
    with LLM(path, dtype="float32") as llm:
        wanted = [output.outputs.embedding for output in llm.embed(list(TEXTS), use_tqdm=False)]
    served = AsyncLLM(path, dtype="float32")
    with serving(served) as running:
        data = ask(running, "/v1/embeddings", input=list(TEXTS))["data"]
        close([one["embedding"] for one in data], wanted)
    served.close()


def test_named_prompts(tmp_path: Path) -> None:
    """The text that the checkpoint states under a name is put before each input; tokens and conversations have none."""
    path = make_tiny_encoder(tmp_path, "BertModel", type_vocab_size=2)
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": folder, "idx": index, "name": str(index)}
        for index, (kind, folder) in enumerate([("Transformer", ""), ("Pooling", "pooling")])
    ]
    (path / "pooling").mkdir()
    files = {
        "modules.json": modules,
        "pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        "config_sentence_transformers.json": {"prompts": {"query": "One two "}},
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    served = AsyncLLM(str(path), dtype="float32")
    with serving(served) as running:
        named = ask(running, "/v1/embeddings", input=["Why?", "What?"], prompt_name="query")["data"]
        whole = ask(running, "/v1/embeddings", input=["One two Why?", "One two What?"])["data"]
        close([one["embedding"] for one in named], [one["embedding"] for one in whole])
        for body in ({"input": [5, 6]}, {"input": "Why?", "prompt_name": "title"}, {"messages": user("Why?")}):
            response = running.post("/v1/embeddings", {"model": MODEL, "prompt_name": "query", **body})
            assert error_of(response, 400)["param"] in ("prompt_name", "input")
    served.close()


def test_scores_of_pairs(tmp_path: Path) -> None:
    """Whole and cut, by a cross-encoder; a template of the operator's joins the texts instead."""
    path = make_tiny_encoder(tmp_path, "BertForSequenceClassification", type_vocab_size=2, num_labels=1)
    query, documents = TEXTS[0], list(TEXTS[1:])
    served = ProcessLLM(str(path), dtype="float32")
    with LLM(str(path), dtype="float32") as llm:
        for kept in (None, 8):
            wanted = llm.score(query, documents, truncate_prompt_tokens=kept, use_tqdm=False)
            with serving(served) as running:
                found = ask(running, "/score", text_1=query, text_2=documents, truncate_prompt_tokens=kept)["data"]
            close([one["score"] for one in found], [output.outputs.score for output in wanted])
        template = "{document} {query}"
        wanted = llm.score(query, documents, template=template, use_tqdm=False)
        with serving(served, score_template=template) as running:
            found = ask(running, "/score", text_1=query, text_2=documents)["data"]
        close([one["score"] for one in found], [output.outputs.score for output in wanted])
    served.close()


def test_a_colbert_model(tmp_path: Path) -> None:
    """Vectors of queries and documents, cut and filled up; scores and ranks by them. A side must be named."""
    path = str(make_pylate(tmp_path))
    long, served = "a red square " * 30, ProcessLLM(path, dtype="float32")
    with LLM(path, dtype="float32") as llm, serving(served) as running:
        for side, texts in (("query", ["red?", long]), ("document", ["A red!", long])):
            options = {"prompt_name": side, "truncate_prompt_tokens": -1}
            wanted = llm.encode(texts, pooling_task="token_embed", use_tqdm=False, **options)
            found = ask(running, "/pooling", input=texts, **options)["data"]
            assert [one["shape"] for one in found] == [list(output.outputs.data.shape) for output in wanted]
            for one, output in zip(found, wanted, strict=True):
                close(one["data"], output.outputs.data)
        (wanted,) = llm.encode("red?", pooling_task="token_embed", prompt_name="document", use_tqdm=False)
        assert ask(running, "/tokenize", prompt="red?", prompt_name="document")["tokens"] == wanted.prompt_token_ids
        scores = [output.outputs.score for output in llm.score("red?", list(DOCUMENTS), use_tqdm=False)]
        close([one["score"] for one in ask(running, "/score", text_1="red?", text_2=list(DOCUMENTS))["data"]], scores)
        ranks = ask(running, "/rerank", query="red?", documents=list(DOCUMENTS), late_interaction=True)["results"]
        close([one["relevance_score"] for one in ranks], sorted(scores, reverse=True))
        for url, body, param in (
            ("/pooling", {"input": "red"}, "prompt_name"),
            ("/pooling", {"input": long, "prompt_name": "query"}, "input"),
            ("/score", {"text_1": "red", "text_2": ["a", long]}, "text_2[1]"),
            ("/score", {"text_1": "red", "text_2": "a", "late_interaction": False}, "task"),
            ("/v1/embeddings", {"input": "red"}, "model"),
        ):
            assert error_of(running.post(url, {"model": MODEL, **body}), 400)["param"] == param
    served.close()

"""Over HTTP, results are those of `LLM`: of text, token ids and items, all at once, through the engine's process."""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corellm import LLM, AsyncLLM
from corellm.engine.process.client import ProcessLLM
from corellm_server.responses.pooling import ranks
from extensions.pooling.tests.checkpoints import WIDTH, random_tensor, rewritten
from extensions.server.tests.conftest import Running, image_part, serving, user
from extensions.server.tests.pooling.conftest import ENGINE, RERANKER, TEMPLATE, ask
from extensions.server.tests.test_equality import media
from tests.fixtures import random_image

TEXTS = [f"sentence {number}: " + "red circle " * (number % 11) for number in range(8)]
ROUNDING, RAW_ROUNDING = 1e-6, 1e-5
"""Rounding of float32 where prompts share a batch: of vectors of length one and scores, and of vectors as they are."""


def all_at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """What calls return that run at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def close(found: Any, wanted: Any, atol: float = ROUNDING) -> None:
    """Both arrays are equal but for rounding."""
    np.testing.assert_allclose(np.array(found, np.float32), np.array(wanted, np.float32), rtol=2e-6, atol=atol)


def prompt_of(llm: LLM, messages: Any, *seeds: int) -> dict[str, Any]:
    """A conversation as the prompt that it becomes, without the start of the assistant's turn."""
    processed = llm.engine.input_processor.process_chat(messages, add_generation_prompt=False)
    return {"prompt": processed.text, "multi_modal_data": {"image": [random_image(40, 30, seed) for seed in seeds]}}


def with_image(text: str, seed: int) -> dict[str, Any]:
    """A prompt that begins with an image, as LLaVA's placeholder string places it."""
    return {"prompt": "<image>\n" + text, "multi_modal_data": {"image": random_image(40, 30, seed)}}


def content(text: str, seed: int) -> dict[str, Any]:
    """The same as parts."""
    return {"content": [image_part(seed), {"type": "text", "text": text}]}


def test_32_mixed_requests_at_once(embedder_apart: Running, tiny_llava: Path) -> None:
    """Texts alone and in lists, token ids, conversations with images, other lengths, raw, cut; and token by token."""
    chats = [user(image_part(seed), {"type": "text", "text": f"what is in {seed}?"}) for seed in range(8)]

    def of(path: str, **body: Any) -> Callable[[], Any]:
        return lambda: ask(embedder_apart, path, **body)["data"]

    calls = [of("/v1/embeddings", input=text) for text in TEXTS]
    calls += [of("/v1/embeddings", messages=chat) for chat in chats]
    calls += [of("/v1/embeddings", input=TEXTS, dimensions=number + 1, normalize=False) for number in range(6)]
    calls += [of("/v1/embeddings", input=[[1, 40 + number], [1, 50, 60]]) for number in range(4)]
    calls += [of("/pooling", input=text, task="token_embed") for text in TEXTS[:4]]
    calls += [of("/v1/embeddings", input=TEXTS[7], truncate_prompt_tokens=5), of("/pooling", input=TEXTS[1])]
    got = all_at_once(calls)
    assert len(got) == 32
    with LLM(str(tiny_llava), convert="embed", **ENGINE) as llm:

        def embedded(prompts: Any, **options: Any) -> list[Any]:
            return [output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False, **options)]  # type: ignore[union-attr]

        wanted = [[vector] for vector in embedded(TEXTS)]
        wanted += [[vector] for vector in embedded([prompt_of(llm, chat, seed) for seed, chat in enumerate(chats)])]
        wanted += [embedded(TEXTS, dimensions=number + 1, normalize=False) for number in range(6)]
        wanted += [embedded([[1, 40 + number], [1, 50, 60]]) for number in range(4)]
        tokens = llm.encode(TEXTS[:4], pooling_task="token_embed", use_tqdm=False)
        (cut,) = embedded(TEXTS[7], truncate_prompt_tokens=5)
    for index, (vectors, data) in enumerate(zip(wanted, got, strict=False)):
        assert [one["index"] for one in data] == list(range(len(vectors)))
        for vector, one in zip(vectors, data, strict=True):
            close(one["embedding"], vector, RAW_ROUNDING if 16 <= index < 22 else ROUNDING)
    for output, (data,) in zip(tokens, got[26:30], strict=True):
        assert output.outputs is not None
        assert tuple(data["shape"]) == output.outputs.data.shape
        close(data["data"], output.outputs.data)
    close(got[30][0]["embedding"], cut)
    close(got[31][0]["data"], wanted[1][0])


@pytest.mark.parametrize(("kind", "client"), [("images and videos", ProcessLLM), ("audio", AsyncLLM)])
def test_conversations_with_all_kinds_of_items(kind: str, client: type[AsyncLLM], tmp_path: Path) -> None:
    """Their embeddings, all at once, are those of `LLM.embed`; other items have others.

    How audio gets to the engine's process is in `test_equality.py` beside this folder.
    """
    module = "corellm_qwen_audio.tiny" if kind == "audio" else "corellm_qwen_vl.tiny"
    path = str(importlib.import_module(module).make_tiny_checkpoint(tmp_path))
    chats = [user(*media(kind, number), {"type": "text", "text": "what?"}) for number in range(6)]
    served = client(path, convert="embed", **ENGINE)
    with serving(served) as running:
        calls = [partial(ask, running, "/v1/embeddings", messages=chat) for chat in chats]
        found = [response["data"][0]["embedding"] for response in all_at_once(calls)]
    served.close()
    with LLM(path, convert="embed", **ENGINE) as llm:
        wanted = [output.outputs.embedding for output in llm.embed(chats, use_tqdm=False)]  # type: ignore[union-attr]
    close(found, wanted)
    assert abs(np.array(wanted[0]) - np.array(wanted[5])).max() > 1e-3


def test_classes(classifier: Running, labelled: Path) -> None:
    """Probabilities or logits of texts and of an image, with the name of the most likely one."""
    chat = user(image_part(3), "what?")
    several, logits, shown = all_at_once([
        lambda: ask(classifier, "/classify", input=TEXTS)["data"],
        lambda: ask(classifier, "/v1/classify", input=TEXTS[0], use_activation=False)["data"],
        lambda: ask(classifier, "/classify", messages=chat)["data"],
    ])  # fmt: skip
    with LLM(str(labelled), **ENGINE) as llm:
        wanted = [one.outputs.probs for one in llm.classify([*TEXTS, prompt_of(llm, chat, 3)], use_tqdm=False)]  # type: ignore[union-attr]
        (raw,) = llm.classify(TEXTS[0], use_activation=False, use_tqdm=False)
    for found, probs in zip([*several, *shown], wanted, strict=True):
        close(found["probs"], probs)
        assert found["num_classes"] == 3
        assert found["label"] == ["cat", "dog", "bird"][int(np.argmax(probs))]
    assert raw.outputs is not None
    close(logits[0]["probs"], raw.outputs.probs)


@pytest.mark.parametrize("late", [False, True])
def test_scores_of_embeddings(embedder: Running, tiny_llava: Path, *, late: bool) -> None:
    """1:1, 1:N, N:N, with images on either side; under all names."""
    documents: list[Any] = [*TEXTS[:3], content("what?", 1)]
    option = {"late_interaction": late}
    one, many, pairs, shown = all_at_once([
        lambda: ask(embedder, "/score", text_1=TEXTS[0], text_2=TEXTS[1], **option)["data"],
        lambda: ask(embedder, "/v1/score", queries=TEXTS[0], documents=documents, **option)["data"],
        lambda: ask(embedder, "/score", text_1=TEXTS[:4], documents=documents, **option)["data"],
        lambda: ask(embedder, "/score", queries=content("a", 2), text_2=documents[::-1], **option)["data"],
    ])  # fmt: skip
    with LLM(str(tiny_llava), convert="embed", **ENGINE) as llm:
        prompts = [*TEXTS[:3], with_image("what?", 1)]

        def scores(queries: Any, others: Any) -> list[float]:
            outputs = llm.score(queries, others, late_interaction=late, use_tqdm=False)
            return [output.outputs.score for output in outputs]  # type: ignore[union-attr]

        wanted = [
            scores(TEXTS[0], TEXTS[1]), scores(TEXTS[0], prompts), scores(TEXTS[:4], prompts),
            scores(with_image("a", 2), prompts[::-1]),
        ]  # fmt: skip
    for found, values in zip((one, many, pairs, shown), wanted, strict=True):
        assert [score["score"] for score in found] == pytest.approx(values, abs=1e-5 if late else 1e-6)


def test_scores_of_pairs_read_together(reranker: Running, tiny_llava: Path) -> None:
    """As with `LLM.score` and the template; also where a document has an image, and where it is before the query."""
    documents: list[Any] = [*TEXTS[:3], content("what?", 1)]
    prompts = [*TEXTS[:3], with_image("what?", 1)]
    query, pictured = "Which one?", content("like this", 5)
    found = [score["score"] for score in ask(reranker, "/score", text_1=query, text_2=documents)["data"]]
    with LLM(str(tiny_llava), **RERANKER, **ENGINE) as llm:

        def scores(one: Any, template: str) -> list[float]:
            outputs = llm.score(one, prompts, template=template, use_tqdm=False)
            return [output.outputs.score for output in outputs]  # type: ignore[union-attr]

        assert found == pytest.approx(scores(query, TEMPLATE), abs=1e-6)
        other = '{document} "fits"\n{query}'
        wanted = scores(with_image("like this", 5), other)
    with serving(reranker.service.client, score_template=other) as running:
        data = ask(running, "/score", text_1=pictured, text_2=documents)["data"]
    assert [score["score"] for score in data] == pytest.approx(wanted, abs=1e-6)


def test_rerank_is_the_order_of_scores(embedder: Running, reranker: Running) -> None:
    """Best first; the best of them; with documents or without; on all URLs."""
    documents: list[Any] = [*TEXTS, {"text": "of an object"}, content("what?", 1)]
    for running in (embedder, reranker):
        scores = np.array([one["score"] for one in ask(running, "/score", text_1="red", text_2=documents)["data"]])
        order = np.argsort(-scores, kind="stable").tolist()
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            results = ask(running, path, query="red", documents=documents)["results"]
            assert [one["relevance_score"] for one in results] == pytest.approx(scores[order], abs=1e-6)
            assert [one["index"] for one in results] == order
        best = ask(running, "/rerank", query="red", documents=documents, top_n=3, return_documents=False)
        assert [(one["index"], "document" in one) for one in best["results"]] == [(index, False) for index in order[:3]]
        for one in results:
            given = documents[one["index"]]
            assert one["document"] == ({"text": given} if isinstance(given, str) else given)


def test_equal_scores_keep_their_order() -> None:
    """The document that was given first is first."""
    ranked = ranks([0.5, 0.7, 0.5, 0.7], [], "m", None, None)["results"]
    assert [one["index"] for one in ranked] == [1, 3, 0, 2]


def test_rewards(tiny_llava: Path, tmp_path: Path) -> None:
    """What `/pooling` gives by default of a reward model: a number for every token, as numbers and as base64."""
    head = {"v_head.weight": random_tensor(1, WIDTH)}
    path = str(rewritten(tiny_llava, tmp_path, architecture="LlavaForRewardModel", heads=head))
    llm = AsyncLLM(path, **ENGINE)
    with serving(llm) as running:
        (found,) = ask(running, "/pooling", input=TEXTS[3])["data"]
        (same,) = ask(running, "/v1/pooling", input=TEXTS[3], task="reward", encoding_format="base64")["data"]
    llm.close()
    with LLM(path, **ENGINE) as offline:
        (output,) = offline.reward(TEXTS[3], use_tqdm=False)
    assert output.outputs is not None
    assert tuple(found["shape"]) == output.outputs.data.shape == (len(output.prompt_token_ids), 1)
    close(found["data"], output.outputs.data)
    close(np.frombuffer(base64.b64decode(same["data"]), "<f4").reshape(same["shape"]), output.outputs.data)

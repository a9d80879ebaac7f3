"""Poolers and heads on random hidden states: any chunks and any mixture of tasks give what plain torch gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corellm_pooling.head_weights import linear_of
from corellm_pooling.heads import ClassificationHead, EmbeddingHead
from corellm_pooling.params import SEQUENCE_POOLING, PoolerConfig, PoolingParams, PoolingTask
from corellm_pooling.poolers import DispatchPooler, PooledChunk, Pooler, SequencePooler, TokenPooler
from corellm_pooling.scoring import cosine, max_sim

WIDTH, TAG = 12, 7


def embedding_head() -> EmbeddingHead:
    return EmbeddingHead(None, WIDTH, normalize=True, dimensions=None)


def classification_head(labels: int = 3, activation: str = "softmax") -> ClassificationHead:
    weight = torch.randn(labels, WIDTH, generator=torch.Generator().manual_seed(1))
    return ClassificationHead(linear_of(weight, None), PoolerConfig(), activation=activation)


def poolers(pooling_type: str) -> dict[str, Pooler]:
    classes = classification_head()
    return {
        "embed": SequencePooler((pooling_type,), embedding_head()),
        "token_embed": TokenPooler(embedding_head()),
        "classify": SequencePooler((pooling_type,), classes),
        "token_classify": TokenPooler(classes),
        "reward": TokenPooler(classes, step_tag_id=TAG),
    }


def expected(task: str, pooling_type: str, hidden: Tensor, token_ids: Sequence[int]) -> Tensor:
    """The result of a whole prompt, by plain torch."""
    positions = torch.arange(1.0, len(hidden) + 1)[:, None]
    pooled = {
        "CLS": hidden[0],
        "LAST": hidden[-1],
        "MEAN": hidden.mean(dim=0),
        "MAX": hidden.amax(dim=0),
        "MEAN_SQRT": hidden.sum(dim=0) / len(hidden) ** 0.5,
        "WEIGHTED": (positions * hidden).sum(dim=0) / positions.sum(),
    }[pooling_type]
    weight = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
    if task == "embed":
        return pooled / pooled.norm()
    if task == "token_embed":
        return hidden / hidden.norm(dim=-1, keepdim=True)
    if task == "classify":
        return (weight @ pooled).softmax(dim=-1)
    classes = (hidden @ weight.T).softmax(dim=-1)
    return classes if task == "token_classify" else classes[torch.tensor(token_ids) == TAG]


@pytest.mark.parametrize("pooling_type", SEQUENCE_POOLING)
def test_any_chunks_and_tasks_mixed(pooling_type: str) -> None:
    """Prompts of all tasks, cut at random and computed side by side, equal each prompt at once; nothing is lost."""
    rng = random.Random(0)
    pooler = DispatchPooler(poolers(pooling_type))
    for _ in range(20):
        lengths = [rng.randint(1, 9) for _ in range(8)]
        whole = [torch.randn(length, WIDTH) for length in lengths]
        ids = [[rng.choice([TAG, 1, 2]) for _ in range(length)] for length in lengths]
        tasks: list[PoolingTask] = [rng.choice(pooler.tasks) for _ in lengths]  # type: ignore[misc]
        carried: list[dict[int, Tensor]] = [{} for _ in lengths]
        done, results = [0] * len(lengths), {}
        while len(results) < len(lengths):
            chunks, rows, owners, first = [], [], [], 0
            for i, length in enumerate(lengths):
                count = min(rng.randint(0, 4), length - done[i])
                if count == 0:
                    continue
                start, done[i] = done[i], done[i] + count
                params = PoolingParams(task=tasks[i])
                tokens = ids[i][start : done[i]]
                chunks.append(PooledChunk(params, first, start, tokens, done[i] == length, carried[i]))
                rows.append(whole[i][start : done[i]])
                owners.append(i)
                first += count
            if not chunks:
                continue
            pooler.pool(torch.cat(rows), chunks)  # as a step whose result was lost: it is computed again
            for i, result in zip(owners, pooler.pool(torch.cat(rows), chunks), strict=True):
                assert (result is not None) == (done[i] == lengths[i])
                if result is not None:
                    results[i] = result
        for i, result in results.items():
            torch.testing.assert_close(result, expected(tasks[i], pooling_type, whole[i], ids[i]), rtol=1e-5, atol=1e-6)


def test_which_poolers_need_every_row() -> None:
    """Only the last token's result may come from a prompt whose beginning was cached."""
    needs = {kind: DispatchPooler(poolers(kind)).needs_every_row for kind in ("CLS", "LAST", "MEAN")}
    assert [needs[kind](PoolingParams(task="embed"), [1]) for kind in ("CLS", "LAST", "MEAN")] == [True, False, True]
    assert all(needs["LAST"](PoolingParams(task=task), [1]) for task in ("token_embed", "token_classify", "reward"))


@pytest.mark.parametrize("token_ids", [[5, 6, 7, 8], [5, 6, 9, 9], [9, 9, 9], [9, 5, 9, 6], [5, 9, 9, 9, 9]])
@pytest.mark.parametrize("chunk", [1, 2, 9])
def test_padding_is_not_the_last_token(token_ids: list[int], chunk: int) -> None:
    """As transformers' classes with a head find it; the first token is taken of padding alone. Whatever the chunks."""
    pooler = SequencePooler(("LAST",), classification_head(), padding=9)
    hidden, carried = torch.randn(len(token_ids), WIDTH), dict[int, Tensor]()
    for start in range(0, len(token_ids), chunk):
        tokens = token_ids[start : start + chunk]
        ends = start + chunk >= len(token_ids)
        (result,) = pooler.pool(
            hidden[start : start + chunk],
            [PooledChunk(PoolingParams(task="classify"), 0, start, tokens, ends, carried)],
        )
    last = max((i for i, token in enumerate(token_ids) if token != 9), default=0)
    assert result is not None
    torch.testing.assert_close(result, expected("classify", "LAST", hidden[: last + 1], token_ids))
    assert pooler.needs_every_row(token_ids) is (token_ids[-1] == 9)


def test_joined_pooling() -> None:
    """Results of two kinds stand one after another, whatever the chunks."""
    head = EmbeddingHead(None, 2 * WIDTH, normalize=False, dimensions=None)
    pooler, hidden, carried = SequencePooler(("MEAN", "MAX"), head), torch.randn(5, WIDTH), dict[int, Tensor]()
    for start, stop in ((0, 3), (3, 5)):
        one = PooledChunk(PoolingParams(task="embed"), 0, start, [1] * (stop - start), stop == 5, carried)
        (result,) = pooler.pool(hidden[start:stop], [one])
    assert result is not None
    torch.testing.assert_close(result, torch.cat([hidden.mean(dim=0), hidden.amax(dim=0)]))


def test_dimensions_are_cut_before_normalisation() -> None:
    """A short embedding has length one, and the direction of the first entries."""
    hidden = torch.randn(4, WIDTH)
    short = embedding_head()(hidden, PoolingParams(task="embed", dimensions=5))
    torch.testing.assert_close(short, nn.functional.normalize(hidden[:, :5], dim=-1))
    raw = embedding_head()(hidden, PoolingParams(task="embed", dimensions=5, use_activation=False))
    assert torch.equal(raw, hidden[:, :5])


def test_two_way_softmax_is_a_sigmoid() -> None:
    """The head of a reranker made of two rows gives the softmax of the two tokens' logits."""
    hidden, rows = torch.randn(50, WIDTH), torch.randn(2, WIDTH)
    head = ClassificationHead(linear_of(rows[1:] - rows[:1], None), PoolerConfig(), activation="sigmoid")
    scores = head(hidden, PoolingParams(task="score"))[:, 0]
    torch.testing.assert_close(scores, (hidden @ rows.T).softmax(dim=-1)[:, 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
def test_bias_and_scale(activation: str) -> None:
    """The bias is subtracted from logits, then they are multiplied by the scale, then activated."""
    hidden, weight = torch.randn(5, WIDTH), torch.randn(3, WIDTH)
    head = ClassificationHead(
        linear_of(weight, None), PoolerConfig(logit_bias=0.5, logit_scale=2.0), activation=activation
    )
    logits = (hidden @ weight.T - 0.5) * 2
    wanted = {"none": logits, "sigmoid": logits.sigmoid(), "softmax": logits.softmax(dim=-1)}[activation]
    torch.testing.assert_close(head(hidden, PoolingParams(task="classify")), wanted)
    torch.testing.assert_close(head(hidden, PoolingParams(task="classify", use_activation=False)), logits)


def test_similarities() -> None:
    """MaxSim is the sum of row maxima, 0 without rows; the cosine is that of the angle, 0 for a zero vector."""
    rng = np.random.default_rng(0)
    query, document = rng.random((3, 5), np.float32), rng.random((4, 5), np.float32)
    assert max_sim(query, document) == pytest.approx(sum(max(q @ d for d in document) for q in query), abs=1e-6)
    assert max_sim(query, document[:0]) == max_sim(query[:0], document) == 0
    assert cosine(query[0], 3 * query[0]) == pytest.approx(1, abs=1e-6)
    assert cosine(query[0], np.zeros(5, np.float32)) == 0


def test_long_texts_are_compared_in_pieces() -> None:
    """The products of all tokens, 64 MiB here, are never in one array."""
    largest = 0

    class Counted(np.ndarray):  # whatever is computed from one is one
        def __array_finalize__(self, _: Any) -> None:
            nonlocal largest
            largest = max(largest, self.nbytes)

    query, document = np.eye(4096, 2, dtype=np.float32), np.ones((4096, 2), np.float32)
    assert max_sim(query.view(Counted), document) == 2
    assert query.nbytes < largest <= 16 << 20

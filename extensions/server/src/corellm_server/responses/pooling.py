"""Pooled results as responses: embeddings in the form of OpenAI's types, classes, scores, ranks, arrays.

Arrays become JSON one by one, so that there is never a Python object for each number of a response.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from corellm_server.requests.pooling import Encoding, Side

if TYPE_CHECKING:
    from corellm_pooling.results import PoolingOutput, PoolingRequestOutput

Pooled: TypeAlias = "PoolingRequestOutput[PoolingOutput]"


def data_of(output: Pooled) -> Any:
    """The array of a request that succeeded."""
    assert output.outputs is not None
    return output.outputs.data


def embeddings(outputs: Sequence[Pooled], model: str, encoding: Encoding) -> dict[str, Any]:
    """OpenAI's `CreateEmbeddingResponse`."""
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(data_of(output), encoding)}
        for index, output in enumerate(outputs)
    ]
    return {"object": "list", "data": data, "model": model, "usage": usage(outputs)}


def classes(outputs: Sequence[Pooled], model: str, labels: Mapping[int, str]) -> dict[str, Any]:
    """Probabilities of each input, and the label of the largest."""
    data = []
    for index, output in enumerate(outputs):
        probs = data_of(output)
        best = int(probs.argmax())
        label = labels.get(best, f"LABEL_{best}") if len(labels) == len(probs) else f"LABEL_{best}"
        data.append({"index": index, "label": label, "probs": probs.tolist(), "num_classes": len(probs)})
    return {**_head("classify", model), "data": data, "usage": usage(outputs)}


def arrays(outputs: Sequence[Pooled], model: str, encoding: Encoding) -> dict[str, Any]:
    """The array of each input, with its shape."""
    data = [
        {"index": index, "object": "pooling", "shape": array.shape, "data": _encoded(array, encoding)}
        for index, array in enumerate(map(data_of, outputs))
    ]
    return {**_head("pool", model), "data": data, "usage": usage(outputs)}


def scores(found: Sequence[float], outputs: Sequence[Pooled], model: str) -> dict[str, Any]:
    """The score of each pair."""
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(found)]
    return {**_head("score", model), "data": data, "usage": usage(outputs)}


def ranks(
    found: Sequence[float], outputs: Sequence[Pooled], model: str, documents: Sequence[Side] | None, top_n: int | None
) -> dict[str, Any]:
    """The best documents first; of equal ones that which was given first.

    Args:
        found: the score of each document.
        outputs: of the prompts that were run.
        model: the name that the client asked for.
        documents: to repeat; None to leave them out.
        top_n: how many; None for all.
    """
    results: list[dict[str, Any]] = []
    for index in sorted(range(len(found)), key=lambda index: -found[index])[:top_n]:
        results.append({"index": index, "relevance_score": found[index]})
        if documents is not None:
            document = documents[index]
            results[-1]["document"] = {"text": document} if isinstance(document, str) else document
    head = _head("rerank", model)
    return {"id": head["id"], "model": model, "results": results, "usage": usage(outputs)}


def usage(outputs: Iterable[Pooled]) -> dict[str, int]:
    """The tokens of all prompts that were run, as OpenAI's usage of embeddings."""
    total = sum(len(output.prompt_token_ids) for output in outputs)
    return {"prompt_tokens": total, "total_tokens": total}


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{kind}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": model}


def _encoded(array: Any, encoding: Encoding) -> Any:
    if encoding == "base64":
        return base64.b64encode(array.astype("<f4").tobytes()).decode()
    return msgspec.Raw(msgspec.json.encode(array.tolist()))

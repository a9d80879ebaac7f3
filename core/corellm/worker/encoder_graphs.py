"""Encoders as CUDA graphs, for models that scale every image to one size.

Launching an encoder's hundreds of kernels takes longer than running them, for a dozen images of ViT-L still. An encoder
is captured if it never waits for the device and its items' outputs have one shape; items of other shapes run without a
graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from corellm.attention.graph import Graph, NotCapturable

logger = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8)
"""Batch sizes that are captured; larger batches are divided."""

Embed = Callable[[str, Mapping[str, Any]], Any]
"""From a modality and joined tensors to a tensor `[items, tokens, width]` or a list of one per item."""


class EncoderGraphs:
    """Captures encoders and replays them.

    Args:
        embed: the function to capture.
        make_graph: called once per modality and size.
    """

    def __init__(self, embed: Embed, make_graph: Callable[[], Graph]) -> None:
        self._embed, self._make_graph = embed, make_graph
        self._inputs: dict[str, dict[str, Tensor]] = {}
        """By modality: the inputs of the largest batch."""
        self._captured: dict[tuple[str, int], tuple[Graph, Tensor]] = {}

    @torch.inference_mode()
    def capture(self, modality: str, item: Mapping[str, Any]) -> None:
        """Capture batches of items shaped like `item`, if that is possible.

        Args:
            modality: of the items.
            item: joined tensors of one item, each `[1, ...]`.
        """
        if not all(isinstance(tensor, Tensor) and tensor.dim() and len(tensor) == 1 for tensor in item.values()):
            return
        inputs = {name: tensor.repeat(SIZES[-1], *[1] * (tensor.dim() - 1)) for name, tensor in item.items()}
        try:
            outputs = list(self._embed(modality, inputs))
        except Exception as error:
            logger.info("the %s encoder is not captured: %s items at once fail: %s", modality, SIZES[-1], error)
            return
        if len(outputs) != SIZES[-1] or len({tuple(part.shape) for part in outputs}) != 1:
            logger.info("the %s encoder is not captured: it does not return an output of one shape per item", modality)
            return
        del outputs
        captured: dict[tuple[str, int], tuple[Graph, Tensor]] = {}
        try:
            for size in reversed(SIZES):
                graph, part = self._make_graph(), {name: tensor[:size] for name, tensor in inputs.items()}
                output = graph.capture(lambda part=part: _stacked(self._embed(modality, part)))  # type: ignore[misc]
                captured[modality, size] = graph, output
        except NotCapturable as reason:
            logger.info("the %s encoder is not captured: %s", modality, reason)
            return
        self._captured |= captured
        self._inputs[modality] = inputs
        logger.info("captured the %s encoder for %s items", modality, ", ".join(map(str, SIZES)))

    @torch.inference_mode()
    def run(self, modality: str, items: Mapping[str, Any]) -> list[Tensor] | None:
        """Return the embeddings of each item of a batch, `[tokens, width]`; None if no graph fits them."""
        inputs = self._inputs.get(modality)
        if inputs is None or inputs.keys() != items.keys():
            return None
        count = len(next(iter(items.values())))
        if not all(_is_like(items[name], tensor, count) for name, tensor in inputs.items()):
            return None
        embeddings: list[Tensor] = []
        for start in range(0, count, SIZES[-1]):
            part = min(SIZES[-1], count - start)
            for name, tensor in inputs.items():
                tensor[:part].copy_(items[name][start : start + part], non_blocking=True)
            graph, output = self._captured[modality, next(size for size in SIZES if size >= part)]
            graph.replay()
            embeddings += [rows.clone() for rows in output[:part]]  # the next replay overwrites them
        return embeddings


def _is_like(value: Any, tensor: Tensor, count: int) -> bool:
    """Whether a value is a tensor of `count` items of the same shape and dtype as those of `tensor`."""
    return isinstance(value, Tensor) and value.dtype == tensor.dtype and value.shape == (count, *tensor.shape[1:])


def _stacked(outputs: Any) -> Tensor:
    return outputs if isinstance(outputs, Tensor) else torch.stack(list(outputs))

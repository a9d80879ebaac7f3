"""The least time a workload can take on this machine: what must be read over the bandwidth, or computed over the rate.

A step reads each weight once at least and does its operations; the slower of both is its floor, a workload's the sum
over its steps. Keys and values are not counted as read, so the floor is below what any engine can reach. Nothing that
can be cached is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.sizes import Size
from bench.peers.workloads import Plan


@dataclass(frozen=True)
class Machine:
    """What this machine reached, with all its threads."""

    bytes_per_s: float
    """Read from memory."""
    flops_per_s: float
    """In a large matrix product, in the type of the measurement or a wider one, whichever is faster."""


@dataclass(frozen=True)
class Step:
    """One forward pass."""

    weights: int
    """Weights that it reads."""
    operations: int

    def seconds(self, machine: Machine, itemsize: float) -> float:
        """Its floor, with weights of so many bytes each."""
        return max(self.weights * itemsize / machine.bytes_per_s, self.operations / machine.flops_per_s)


def prefill(size: Size, lengths: Sequence[int], images: int, cached: int = 0) -> Step:
    """The step that reads prompts.

    Args:
        size: the model.
        lengths: tokens of each prompt that are computed.
        images: how many images are encoded.
        cached: tokens before them, the same number in each prompt.
    """
    decoder = size.decoder
    weights = decoder.layer_weights + decoder.output_weights
    if images:
        weights += size.tower_weights + size.projector_weights
    contexts = sum(cached * length + length * (length + 1) // 2 for length in lengths)
    matrices = decoder.layer_weights * sum(lengths) + decoder.output_weights * len(lengths)
    operations = 2 * matrices + decoder.attention_operations(contexts) + images * size.image_operations
    return Step(weights, operations)


def decode(size: Size, contexts: Sequence[int]) -> Step:
    """The step that gives each sequence one more token; `contexts` are their lengths, that token included."""
    weights = size.decoder.layer_weights + size.decoder.output_weights
    return Step(weights, 2 * weights * len(contexts) + size.decoder.attention_operations(sum(contexts)))


def generation(size: Size, lengths: Sequence[int], images: int, tokens: int, cached: int = 0) -> list[Step]:
    """All steps of prompts that are there at once: the prompts in one, then `tokens - 1` steps of the whole batch."""
    first = prefill(size, lengths, images, cached)
    return [first, *(decode(size, [cached + length + i for length in lengths]) for i in range(1, tokens))]


def best_figures(
    size: Size, workload: str, plan: Plan, lengths: Sequence[int], machine: Machine, itemsize: float
) -> dict[str, float]:
    """What each figure of a workload would be at the floor; figures that have none are left out.

    Args:
        size: the model.
        workload: its name.
        plan: how much of it.
        lengths: tokens of each prompt, images included; of W3 those of its questions, of W4 those of the request with
            an image and of the one without.
        machine: its rates.
        itemsize: bytes of a weight.
    """

    def seconds(*steps: Step) -> float:
        return sum(step.seconds(machine, itemsize) for step in steps)

    tokens = plan.tokens
    if workload in ("W1", "W2"):
        images = plan.requests if workload == "W1" else 0
        return {"tokens/s": plan.requests * tokens / seconds(*generation(size, lengths, images, tokens))}
    if workload == "W3":
        shared = plan.shared_tokens
        steps = generation(size, lengths[:1], 1, tokens)
        for length in lengths[1:]:
            steps += generation(size, [length - shared], 0, tokens, cached=shared)
        return {"s per question": seconds(*steps) / len(lengths)}
    if workload == "W4":
        found = {}
        for kind, length, images in (("image", lengths[0], 1), ("text", lengths[1], 0)):
            first, *others = generation(size, [length], images, tokens)
            found[f"{kind}: first token, ms"] = 1e3 * seconds(first)
            found[f"{kind}: between tokens, ms"] = 1e3 * seconds(*others) / len(others)
        return found
    if workload == "W7":
        return {"new images/s": plan.requests / seconds(prefill(size, lengths, plan.requests))}
    return {}

"""Parts of plain forward passes, for the oracle of a model that transformers does not have.

One sequence, float32, no cache; weights by their published names. Shares no code with an adapter, with the engine or
with a model of transformers, and knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class PlainModel:
    """A checkpoint's configuration and weights, and the operations that most models have.

    Args:
        path: the checkpoint's directory.
    """

    epsilon: float = 1e-6
    """Epsilon of `rms_norm`, where none is given; most models have it in their configuration."""

    def __init__(self, path: Path) -> None:
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self.weights = plain_weights(path)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Return `x` through a linear layer, with or without a bias."""
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def layer_norm(self, x: Tensor, name: str, epsilon: float) -> Tensor:
        """Return `x` with mean 0 and variance 1, scaled and shifted."""
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps=epsilon)

    def rms_norm(self, x: Tensor, name: str, epsilon: float | None = None) -> Tensor:
        """Return `x` with mean square 1, scaled."""
        epsilon = self.epsilon if epsilon is None else epsilon
        normed: Tensor = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
        return normed * self.weights[f"{name}.weight"]


def plain_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of all of a checkpoint's files, in float32."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors"))
    return {name: tensor.float() for file in files for name, tensor in load_file(file).items()}


def causal(scores: Tensor) -> Tensor:
    """Return the attention of each token to itself and those before it, `[tokens, tokens]`."""
    return (scores + torch.full_like(scores, -torch.inf).triu(1)).softmax(-1)


def rotated(a: Tensor, b: Tensor, *, base: float) -> tuple[Tensor, Tensor]:
    """Rotate pairs of values `[tokens, pairs]` by position times a frequency that falls with the pair's number."""
    count = a.shape[-1]
    frequencies = base ** -(torch.arange(count).double() / count)
    angles = torch.arange(len(a)).double()[:, None] * frequencies
    cos, sin = angles.cos().float(), angles.sin().float()
    return a * cos - b * sin, b * cos + a * sin


@torch.no_grad()
def generate_plain(
    next_logits: Callable[[list[int]], Tensor], max_tokens: int, never: Collection[int] = ()
) -> tuple[list[int], list[float]]:
    """Return greedy tokens, none of them in `never`, and their log-probabilities: arguments of a `Continuation`.

    Args:
        next_logits: returns the logits `[vocabulary]` behind a prompt and the given tokens.
        max_tokens: how many are generated.
        never: tokens that are not taken, as those that end a text.
    """
    tokens: list[int] = []
    logprobs: list[float] = []
    for _ in range(max_tokens):
        logits = next_logits(tokens)
        allowed = logits.clone()
        allowed[list(never)] = -torch.inf
        tokens.append(int(allowed.argmax()))
        logprobs.append(float(logits.log_softmax(-1)[tokens[-1]]))
    return tokens, logprobs

"""Reads the weights of heads from a checkpoint's files: score heads, projections, single rows of the output layer.

Reads only the tensors it needs, in float32. Knows names of tensors and their shapes; knows no requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError
from corellm.modelling.checkpoint_files import read_json
from corellm_pooling.colbert_files import INLINE_PROJECTION
from corellm_pooling.sentence_transformers import StatedPooling

_HEAD = re.compile(r"(?:model\.)?(?:score|classifier|v_head|value_head)(?:\.(\d+))?\.(weight|bias)")

_POOLED, _OF_TOKENS = "sentence_embedding", "token_embeddings"


def read_score(path: Path) -> nn.Module | None:
    """Return a checkpoint's head from hidden states to logits: linear layers, with ReLU between; None if it has none.

    Raises:
        CheckpointError: its layers do not fit together, or to the number of labels that the configuration states.
    """
    layers: dict[int, dict[str, Tensor]] = {}
    for name, file in _tensors(path):
        found = _HEAD.fullmatch(name)
        if found is not None:
            layers.setdefault(int(found[1] or 0), {})[found[2]] = file.get_tensor(name)
    if not layers:
        return None
    linears = [_linear(layers[index], path) for index in sorted(layers)]
    head = nn.Sequential(*[module for linear in linears for module in (nn.ReLU(), linear)][1:])
    stated = read_json(path / "config.json").get("id2label")
    if isinstance(stated, dict) and len(stated) != linears[-1].out_features:
        raise CheckpointError(
            f"{path}: config.json has {len(stated)} labels (id2label), but the head in its weights gives "
            f"{linears[-1].out_features}; correct id2label"
        )
    return head


def read_projector(stated: StatedPooling) -> nn.Module | None:
    """Return the projections of a sentence-transformer; None if it has none.

    Raises:
        CheckpointError: a file is absent, or has an activation that there is not.
    """
    modules: list[nn.Module] = []
    reads = _POOLED if stated.late is None else _OF_TOKENS
    for folder in stated.dense:
        weights = {name.removeprefix("linear."): file.get_tensor(name) for name, file in _tensors(folder)}
        if "weight" not in weights:
            raise CheckpointError(f"{folder}: no weights in safetensors; pickles are not loaded, convert them")
        config = read_json(folder / "config.json")
        if config.get("module_input_name", reads) != reads:
            raise CheckpointError(f"{folder}: a projection of other than {reads} cannot be run")
        activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
        if activation not in ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid"):
            raise CheckpointError(f"{folder}: the activation {activation} cannot be run")
        projection = nn.Sequential(_linear(weights, folder), getattr(nn, activation)())
        modules.append(
            _WithResidual(projection, _residual(weights, folder)) if config.get("use_residual") else projection
        )
    return nn.Sequential(*modules) if modules else None


class _WithResidual(nn.Module):
    """A projection to which its input is added, itself projected where the widths differ."""

    def __init__(self, projection: nn.Module, residual: nn.Module) -> None:
        super().__init__()
        self.projection, self.residual = projection, residual

    def forward(self, hidden: Tensor) -> Tensor:
        projected: Tensor = self.projection(hidden) + self.residual(hidden)
        return projected


def _residual(weights: dict[str, Tensor], folder: Path) -> nn.Module:
    if "residual.weight" in weights:
        shape, own = weights["residual.weight"].shape, weights["weight"].shape
        if shape != own or "residual.bias" in weights:
            raise CheckpointError(
                f"{folder}: residual.weight is {list(shape)}, and must be {list(own)}, without a bias"
            )
        return _linear({"weight": weights["residual.weight"]}, folder)
    if weights["weight"].shape[0] != weights["weight"].shape[1]:
        raise CheckpointError(f"{folder}: use_residual needs residual.weight, as its widths differ; download it again")
    return nn.Identity()


def read_inline_projector(path: Path) -> nn.Module:
    """Return the projection that Stanford's ColBERT has among the encoder's weights.

    Raises:
        CheckpointError: it is absent, or has another shape.
    """
    for name, file in _tensors(path):
        if name == INLINE_PROJECTION:
            return _linear({"weight": file.get_tensor(name)}, path)
    raise CheckpointError(
        f"{path}: its weights have no {INLINE_PROJECTION}, the projection of ColBERT; download it again"
    )


def read_output_rows(
    path: Path, layer: str | None, tied: Tensor | None, token_ids: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the output layer's weights `[tokens, hidden_size]` and biases `[tokens]` for some tokens.

    Args:
        path: of the checkpoint.
        layer: the output layer's name within its parent; None if it is not known.
        tied: the embedding table, if it also is the output layer.
        token_ids: which rows.

    Raises:
        CheckpointError: it has no output layer.
    """
    rows = bias = None
    for name, file in _tensors(path):
        leaf, _, kind = (name if "." in name else f".{name}").rpartition(".")
        if layer is None or leaf.rpartition(".")[2] != layer:
            continue
        if kind == "weight":
            table = file.get_slice(name)
            rows = torch.cat([table[token : token + 1] for token in token_ids]).float()
        elif kind == "bias":
            bias = file.get_tensor(name)[list(token_ids)].float()
    if rows is None and tied is not None:
        rows = tied[list(token_ids)].float().cpu()
    if rows is None:
        raise CheckpointError(
            f"{path}: no output layer to make a head of was found ({layer or 'the model does not name one'}); take a "
            "checkpoint with a head (score), or set convert='embed'"
        )
    return rows, torch.zeros(len(token_ids)) if bias is None else bias


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a frozen linear layer in float32."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.float(), requires_grad=False)
    return layer


def _linear(tensors: dict[str, Tensor], path: Path) -> nn.Linear:
    weight = tensors.get("weight")
    if weight is None or weight.ndim != 2:
        raise CheckpointError(f"{path}: a layer of the head has no weight of two dimensions")
    return linear_of(weight, tensors.get("bias"))


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Return `(name, opened file)` of every tensor in a folder's safetensors."""
    for file in sorted(path.glob("*.safetensors")):
        with _opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                yield name, opened


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: the weights cannot be read: {error}; download it again") from error

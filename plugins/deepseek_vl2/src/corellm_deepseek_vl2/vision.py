"""The vision tower and the projector, and the order in which an image's embeddings go to the text decoder.

Parameters have the checkpoint's names, which are those of timm's ViT. Knows no prompt.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPS = 1e-6


class VisionTransformer(nn.Module):
    """SigLIP without its pooling head.

    Args:
        config: the section `vision_config`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, patch = config["width"], config["patch_size"]
        conv = nn.Conv2d(3, width, kernel_size=patch, stride=patch)  # what is left at the edges is not seen
        self.patch_embed = nn.ModuleDict({"proj": conv})
        self.pos_embed = nn.Parameter(torch.empty(1, (config["image_size"] // patch) ** 2, width))
        mlp_width = int(width * config["mlp_ratio"])
        self.blocks = nn.Sequential(*(Block(width, config["heads"], mlp_width) for _ in range(config["layers"])))
        self.norm = nn.LayerNorm(width, eps=_EPS)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """`[views, 3, side, side]` to `[views, patches, width]`."""
        patches = self.patch_embed["proj"](pixel_values).flatten(2).transpose(1, 2)
        hidden: Tensor = self.norm(self.blocks(patches + self.pos_embed))
        return hidden


class Block(nn.Module):
    """One layer of the tower: attention and MLP, each after a norm, with a residual connection."""

    def __init__(self, width: int, heads: int, mlp_width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=_EPS)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=_EPS)
        mlp = {
            "fc1": nn.Linear(width, mlp_width),
            "act": nn.GELU(approximate="tanh"),
            "fc2": nn.Linear(mlp_width, width),
        }
        self.mlp = nn.Sequential(OrderedDict(mlp))

    def forward(self, hidden: Tensor) -> Tensor:
        """`[views, patches, width]` in and out."""
        hidden = hidden + self.attn(self.norm1(hidden))
        output: Tensor = hidden + self.mlp(self.norm2(hidden))
        return output


class Attention(nn.Module):
    """Attention of all patches to all patches of a view."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[views, patches, width]` in and out."""
        joint: Tensor = self.qkv(hidden)
        by_head = joint.view(*hidden.shape[:2], 3, self.heads, -1)
        query, key, value = by_head.permute(2, 0, 3, 1, 4)  # each [views, heads, patches, head_size]
        attended = functional.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return output


class Projector(nn.Module):
    """Joins squares of patches, and maps them to the width of the text decoder.

    Args:
        config: the section `projector_config`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.ratio: int = config["downsample_ratio"]
        inner = config["n_embed"] * config["mlp_ratio"]
        widths = [config["input_dim"] * self.ratio**2, *[inner] * (config["depth"] - 1), config["n_embed"]]
        layers: list[nn.Module] = []
        for width, following in pairwise(widths):
            layers += [nn.Linear(width, following), nn.GELU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, patches: Tensor) -> Tensor:
        """`[views, patches, width]` to `[views, rows, columns, n_embed]`; odd squares are filled with zeros."""
        side = math.isqrt(patches.shape[1])
        missing = -side % self.ratio
        grid = patches.transpose(1, 2).reshape(len(patches), -1, side, side)
        grid = functional.pad(grid, (0, missing, 0, missing))
        squares = functional.unfold(grid, self.ratio, stride=self.ratio).transpose(1, 2)
        rows = (side + missing) // self.ratio
        embeddings: Tensor = self.layers(squares)
        return embeddings.reshape(len(patches), rows, rows, -1)


def lay_out(views: Tensor, columns: int, rows: int, *, newline: Tensor, divider: Tensor, whole_first: bool) -> Tensor:
    """Return an image's embeddings, `[tokens, hidden_size]`.

    Args:
        views: `[1 + rows * columns, side, side, hidden_size]`, of the whole image and of its tiles.
        columns, rows: of tiles.
        newline: `[hidden_size]`, at the end of each row of embeddings, which goes through all tiles beside each other.
        divider: `[hidden_size]`, between the whole image and the tiles.
        whole_first: whether the tiles come last.
    """
    side, width = views.shape[1], views.shape[3]
    tiles = views[1:].reshape(rows, columns, side, side, width).transpose(1, 2).reshape(rows * side, -1, width)
    whole, tiled = (
        torch.cat([grid, newline.expand(len(grid), 1, width)], dim=1).flatten(0, 1) for grid in (views[0], tiles)
    )
    return torch.cat([whole, divider[None], tiled] if whole_first else [tiled, divider[None], whole])

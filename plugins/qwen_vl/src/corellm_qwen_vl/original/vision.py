"""The vision tower: a plain ViT over 448 x 448 pixels, and a resampler with 256 learned queries.

Parameters have the checkpoint's names. Two peculiarities of the published tower: query, key and value lie
interleaved by head in `in_proj`, and both tables of positions are of a 16 x 16 grid, stretched to the 32 x 32 patches.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPS = 1e-6
_RESAMPLER_HEAD_SIZE = 128


class VisionTransformer(nn.Module):
    """Pixels to embeddings of the text decoder's width.

    Args:
        visual: the configuration's section on vision.
    """

    def __init__(self, visual: Mapping[str, Any]) -> None:
        super().__init__()
        width, output, patch, queries = (visual[k] for k in ("width", "output_dim", "patch_size", "n_queries"))
        self.conv1 = nn.Conv2d(3, width, kernel_size=patch, stride=patch, bias=False)
        self.positional_embedding = nn.Parameter(torch.empty(256, width))
        self.ln_pre = nn.LayerNorm(width, eps=_EPS)
        blocks = [Block(width, visual["heads"], int(width * visual["mlp_ratio"])) for _ in range(visual["layers"])]
        self.transformer = nn.ModuleDict({"resblocks": nn.Sequential(*blocks)})
        self.attn_pool = Resampler(queries, width, output)
        self.ln_post = nn.LayerNorm(output, eps=_EPS)
        self.proj = nn.Parameter(torch.empty(output, output))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """`[images, 3, size, size]` to `[images, n_queries, output_dim]`."""
        hidden = self.conv1(pixel_values).flatten(2).transpose(1, 2)  # [images, patches, width]
        hidden = self.ln_pre(hidden + stretch(self.positional_embedding, hidden.shape[1]))
        hidden = self.transformer["resblocks"](hidden)
        embeddings: Tensor = self.ln_post(self.attn_pool(hidden)) @ self.proj
        return embeddings


class Block(nn.Module):
    """One layer of the tower: attention and MLP, each after a norm, with a residual connection."""

    def __init__(self, width: int, heads: int, mlp_width: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=_EPS)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=_EPS)
        mlp = {"c_fc": nn.Linear(width, mlp_width), "gelu": nn.GELU(), "c_proj": nn.Linear(mlp_width, width)}
        self.mlp = nn.Sequential(OrderedDict(mlp))

    def forward(self, hidden: Tensor) -> Tensor:
        """`[images, patches, width]` in and out."""
        hidden = hidden + self.attn(self.ln_1(hidden))
        output: Tensor = hidden + self.mlp(self.ln_2(hidden))
        return output


class Attention(nn.Module):
    """Attention of all patches to all patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[images, patches, width]` in and out."""
        joint: Tensor = self.in_proj(hidden)
        by_head = joint.view(*hidden.shape[:2], self.heads, 3, -1)  # [images, patches, heads, 3, head_size]
        query, key, value = by_head.permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)  # [images, heads, patches, head_size]
        output: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return output


class Resampler(nn.Module):
    """Cross attention of learned queries to the patches. Positions are added to queries and keys, not to values."""

    def __init__(self, num_queries: int, width: int, output_dim: int) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.empty(num_queries, output_dim))
        self.query = nn.Parameter(torch.empty(num_queries, output_dim))
        same = width == output_dim
        self.kv_proj: nn.Module = nn.Identity() if same else nn.Linear(width, output_dim, bias=False)
        self.ln_q = nn.LayerNorm(output_dim, eps=_EPS)
        self.ln_kv = nn.LayerNorm(output_dim, eps=_EPS)
        self.attn = nn.MultiheadAttention(output_dim, output_dim // _RESAMPLER_HEAD_SIZE, batch_first=True)

    def forward(self, patches: Tensor) -> Tensor:
        """`[images, patches, width]` to `[images, num_queries, output_dim]`."""
        value = self.ln_kv(self.kv_proj(patches))
        key = value + stretch(self.pos_embed, patches.shape[1])
        query = (self.ln_q(self.query) + self.pos_embed).expand(len(patches), -1, -1)
        output: Tensor = self.attn(query, key, value, need_weights=False)[0]
        return output


def stretch(table: Tensor, count: int) -> Tensor:
    """Stretch a square grid of position embeddings `[positions, width]` to one of `count` positions, bicubically."""
    side, wanted = math.isqrt(len(table)), math.isqrt(count)
    if side == wanted:
        return table
    grid = table.float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    stretched = functional.interpolate(grid, size=(wanted, wanted), mode="bicubic", align_corners=False)
    return stretched.flatten(2)[0].T.to(table.dtype)

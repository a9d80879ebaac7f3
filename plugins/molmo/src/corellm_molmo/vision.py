"""The vision tower: CLIP's ViT, whose features of two layers are pooled two by two and projected.

Parameters have the checkpoint's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPS = 1e-5
_LAYERS = (-2, -9)


class VisionBackbone(nn.Module):
    """Patches to embeddings of the text decoder's width.

    Args:
        vision: the configuration's section on vision.
        intermediate_size: of the projector.
        hidden_size: of the decoder.
    """

    def __init__(self, vision: Mapping[str, Any], intermediate_size: int, hidden_size: int) -> None:
        super().__init__()
        width = vision["image_emb_dim"]
        features = len(_LAYERS) * width
        self.image_vit = VisionTransformer(vision)
        self.image_pooling_2d = Attention(features, width, vision["image_num_heads"])
        self.image_projector = Projector(width, intermediate_size, hidden_size)
        self.pad_embed = nn.Parameter(torch.empty(2, features))  # of patches that are padding, and that are in part

    def forward(self, images: Tensor, masks: Tensor, kept: Tensor) -> Tensor:
        """Embed crops.

        Args:
            images: `[crops, patches, values]`.
            masks: `[crops, patches]`, the part of each patch that is not padding.
            kept: `[crops * tokens]`, bool: which of four patches each are pooled to an embedding.

        Returns:
            `[embeddings, hidden_size]`, crop by crop.
        """
        features = self.image_vit(images)
        for padding, embed in zip((masks == 0, (masks < 1) & (masks != 0)), self.pad_embed, strict=True):
            features = features + padding[..., None] * embed  # [crops, patches, features]
        side = round(features.shape[1] ** 0.5) // 2
        squares = features.unflatten(1, (side, 2, side, 2)).transpose(2, 3).flatten(3, 4).flatten(0, 2)[kept]
        pooled = self.image_pooling_2d(squares.mean(1, keepdim=True), squares)[:, 0]
        embeddings: Tensor = self.image_projector(pooled)
        return embeddings


class VisionTransformer(nn.Module):
    """The tower, with a class token."""

    def __init__(self, vision: Mapping[str, Any]) -> None:
        super().__init__()
        width, patch, count = (vision[name] for name in ("image_emb_dim", "image_patch_size", "image_num_layers"))
        height, breadth = vision["image_default_input_size"]
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty(1 + (height // patch) * (breadth // patch), width))
        self.patch_embedding = nn.Linear(3 * patch**2, width, bias=False)
        self.pre_ln = nn.LayerNorm(width, eps=_EPS)
        blocks = [Block(width, vision["image_num_heads"], vision["image_mlp_dim"]) for _ in range(count)]
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList(blocks)})

    def forward(self, images: Tensor) -> Tensor:
        """`[crops, patches, values]` to `[crops, patches, features]`: two layers' outputs side by side."""
        patches = self.patch_embedding(images)
        hidden = torch.cat([self.class_embedding.expand(len(patches), 1, -1), patches], 1) + self.positional_embedding
        hidden = self.pre_ln(hidden)
        outputs = []
        for block in self.transformer["resblocks"][: max(_LAYERS) + 1]:  # type: ignore[index]
            hidden = block(hidden)
            outputs.append(hidden)
        last = max(_LAYERS) + 1  # layers behind the last one that is read are not run
        return torch.cat([outputs[layer - last] for layer in _LAYERS], -1)[:, 1:]


class Block(nn.Module):
    """One layer of the tower: attention and MLP, each after a norm, with a residual connection."""

    def __init__(self, width: int, heads: int, mlp_width: int) -> None:
        super().__init__()
        self.attention = Attention(width, width, heads)
        self.attention_norm = nn.LayerNorm(width, eps=_EPS)
        self.feed_forward = nn.ModuleDict({"w1": nn.Linear(width, mlp_width), "w2": nn.Linear(mlp_width, width)})
        self.ffn_norm = nn.LayerNorm(width, eps=_EPS)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[crops, tokens, width]` in and out."""
        normed = self.attention_norm(hidden)
        hidden = hidden + self.attention(normed, normed)
        inner = self.feed_forward["w1"](self.ffn_norm(hidden))
        output: Tensor = hidden + self.feed_forward["w2"](inner * torch.sigmoid(1.702 * inner))
        return output


class Attention(nn.Module):
    """Attention of queries to all of a context."""

    def __init__(self, features: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv = (nn.Linear(features, width) for _ in range(3))
        self.wo = nn.Linear(width, width)

    def forward(self, queries: Tensor, context: Tensor) -> Tensor:
        """`[batch, queries, features]` and `[batch, tokens, features]` to `[batch, queries, width]`."""
        query, key, value = (
            layer(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, given in ((self.wq, queries), (self.wk, context), (self.wv, context))
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.wo(attended.transpose(1, 2).flatten(2))
        return output


class Projector(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int, intermediate_size: int, hidden_size: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, intermediate_size, bias=False) for _ in range(2))
        self.w2 = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        """`[..., width]` to `[..., hidden_size]`."""
        output: Tensor = self.w2(functional.silu(self.w1(pooled)) * self.w3(pooled))
        return output

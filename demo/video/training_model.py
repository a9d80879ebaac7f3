"""The `demo-video` model in training: its forward pass over a packed batch, and heads that exist in training only.

Knows no optimizer and no scene. The vision tower's forward pass is written out here, because Transformers' runs one
pair of frames after the other; the text model's is Transformers'.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb_vision

from demo.packing import IGNORE, additive_mask, answer_loss
from demo.video.model import MEAN, STD
from demo.video.moving_shapes import COUNTS, MOVES, SHAPES
from demo.video.packing import CELLS, PAIRS, PATCHES, Batch


class TrainingModel(nn.Module):
    """The model and four heads that predict what each patch of a pair of frames shows."""

    def __init__(self, model: Qwen2VLForConditionalGeneration) -> None:
        super().__init__()
        self.model = model
        width = model.config.vision_config.embed_dim
        self.heads = nn.ModuleList(nn.Linear(width, n) for n in (len(SHAPES), len(MOVES), len(COUNTS), 1 + len(COUNTS)))
        self.mean: torch.Tensor  # of each value of a patch, in bytes
        self.scale: torch.Tensor
        self.noise: torch.Tensor
        self.rank_weight = torch.tensor([1.0] + [5.0] * len(COUNTS))  # most patches show background
        values = model.model.visual.patch_embed.proj.weight[0].numel()
        self.register_buffer("mean", (torch.tensor(MEAN) * 255).repeat_interleave(values // 3))
        self.register_buffer("scale", 1 / (torch.tensor(STD) * 255).repeat_interleave(values // 3))
        self.register_buffer("noise", torch.randn(256, PATCHES, values) * 0.05)
        # Flash attention's backward pass is slow on a CPU with short rows and a mask.
        model.set_attn_implementation("eager")

    def encode(
        self, pixels: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the vision tower on all pairs of frames at once.

        Args:
            pixels: [pairs, PATCHES, values of a patch]
            cos, sin: [pairs, PATCHES, head_size]
            mask: [pairs, 1, 1, PATCHES], added to the scores: very negative for padding

        Returns:
            Features of patches, [pairs, PATCHES, embed_dim], and of cells, [pairs, CELLS, hidden_size].
        """
        tower = self.model.model.visual
        hidden = functional.linear(pixels, tower.patch_embed.proj.weight.flatten(1))
        for block in tower.blocks:
            attn = block.attn
            qkv = attn.qkv(block.norm1(hidden)).unflatten(-1, (3, attn.num_heads, attn.head_dim))
            query, key, value = qkv.unbind(2)  # [pairs, PATCHES, heads, head_size]
            query, key = apply_rotary_pos_emb_vision(query, key, cos, sin)
            scores = torch.einsum("nqhd,nkhd->nhqk", query, key) * attn.scaling + mask
            mixed = torch.einsum("nhqk,nkhd->nqhd", scores.softmax(-1).to(value.dtype), value)
            hidden = hidden + attn.proj(mixed.flatten(2))
            hidden = hidden + block.mlp(block.norm2(hidden))
        normed = tower.merger.ln_q(hidden)
        return hidden, tower.merger.mlp(normed.view(len(hidden), -1, tower.merger.hidden_size))

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the answers, and the auxiliary loss of the patches."""
        inner = self.model.model
        size = len(batch.input_ids)
        pixels = (batch.patch_bytes.float() - self.mean) * self.scale
        pixels += self.noise[torch.randint(len(self.noise), (size, PAIRS))] * torch.rand(size, 1, 1, 1)
        cos, sin = (
            table.view(size, PATCHES, -1).repeat_interleave(PAIRS, 0)  # [pairs, PATCHES, head_size]
            for table in inner.visual.rotary_pos_emb(pixels, batch.patch_positions.flatten(0, 1))
        )
        mask = additive_mask(batch.patch_mask).repeat_interleave(PAIRS, 0)
        patches, cells = self.encode(pixels.flatten(0, 1), cos, sin, mask[:, None, None])
        embeds = inner.language_model.embed_tokens(batch.input_ids)
        cells = cells.view(size, PAIRS * CELLS, -1).to(embeds.dtype)
        index = batch.cell_index[..., None]
        embeds = torch.where(index >= 0, cells.gather(1, index.clamp(min=0).expand_as(embeds)), embeds)
        hidden = inner.language_model(
            inputs_embeds=embeds,
            attention_mask={"full_attention": additive_mask(batch.mask)},
            position_ids=batch.positions,
            use_cache=False,
        ).last_hidden_state
        return answer_loss(self.model.lm_head, hidden, batch.labels), self._patch_loss(patches, batch.patch_labels)

    def _patch_loss(self, patches: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for head, targets, weight in zip(self.heads, labels, (None, None, None, self.rank_weight), strict=True):
            logits = head(patches).float().flatten(0, 1)  # [num_patches, classes]
            total = total + functional.cross_entropy(logits, targets.flatten(), weight, ignore_index=IGNORE)
        return total

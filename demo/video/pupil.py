"""The model in training: its forward pass over a packed batch, and heads that exist in training only.

Knows no optimizer. The vision tower is run by its weights and not by Transformers' code, which goes from one pair of
frames to the next; the text model is run as it is.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb_vision

from demo.video.clips import COUNTS, MOVES, SHAPES
from demo.video.model import MEAN, STD
from demo.video.packing import CELLS, IGNORE, PAIRS, PATCHES, Batch


class Pupil(nn.Module):
    """The model with the heads that exist in training only: what every patch of a pair of frames shows."""

    def __init__(self, model: Qwen2VLForConditionalGeneration) -> None:
        super().__init__()
        self.qwen = model
        width = model.config.vision_config.embed_dim
        self.heads = nn.ModuleList(nn.Linear(width, n) for n in (len(SHAPES), len(MOVES), len(COUNTS), 1 + len(COUNTS)))
        self.mean: torch.Tensor  # of each value of a patch, in bytes
        self.scale: torch.Tensor
        self.noise: torch.Tensor
        self.rank_weight = torch.tensor([1.0] + [5.0] * len(COUNTS))  # most patches show nothing
        values = model.model.visual.patch_embed.proj.weight[0].numel()
        self.register_buffer("mean", (torch.tensor(MEAN) * 255).repeat_interleave(values // 3))
        self.register_buffer("scale", 1 / (torch.tensor(STD) * 255).repeat_interleave(values // 3))
        self.register_buffer("noise", torch.randn(256, PATCHES, values) * 0.05)
        # Flash attention's backward pass is slow on a CPU with short rows and a mask.
        model.set_attn_implementation("eager")

    def see(
        self, patches: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, blocked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The vision tower on all pairs of frames at once; Transformers' own goes from one pair to the next.

        Args:
            patches: [pairs, PATCHES, values of a patch]
            cos, sin: [pairs, PATCHES, head_size]
            blocked: [pairs, 1, 1, PATCHES], what is added to the scores: very negative for padding

        Returns:
            What each patch becomes, [pairs, PATCHES, embed_dim], and each cell, [pairs, CELLS, hidden_size].
        """
        tower = self.qwen.model.visual
        hidden = functional.linear(patches, tower.patch_embed.proj.weight.flatten(1))
        for block in tower.blocks:
            attn = block.attn
            qkv = attn.qkv(block.norm1(hidden)).unflatten(-1, (3, attn.num_heads, attn.head_dim))
            query, key, value = qkv.unbind(2)  # [pairs, PATCHES, heads, head_size]
            query, key = apply_rotary_pos_emb_vision(query, key, cos, sin)
            scores = torch.einsum("nqhd,nkhd->nhqk", query, key) * attn.scaling + blocked
            mixed = torch.einsum("nhqk,nkhd->nqhd", scores.softmax(-1).to(value.dtype), value)
            hidden = hidden + attn.proj(mixed.flatten(2))
            hidden = hidden + block.mlp(block.norm2(hidden))
        normed = tower.merger.ln_q(hidden)
        return hidden, tower.merger.mlp(normed.view(len(hidden), -1, tower.merger.hidden_size))

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of the answers, and the auxiliary loss of the patches."""
        inner = self.qwen.model
        count = len(batch.input_ids)
        pixels = (batch.patch_bytes.float() - self.mean) * self.scale
        pixels += self.noise[torch.randint(len(self.noise), (count, PAIRS))] * torch.rand(count, 1, 1, 1)
        cos, sin = inner.visual.rotary_pos_emb(pixels, batch.places.flatten(0, 1))
        cos, sin = (
            table.view(count, PATCHES, -1).repeat_interleave(PAIRS, 0) for table in (cos, sin)
        )  # [pairs, PATCHES, head_size]
        blocked = torch.zeros(batch.there.shape).masked_fill_(~batch.there, -1e4).repeat_interleave(PAIRS, 0)
        seen, cells = self.see(pixels.flatten(0, 1), cos, sin, blocked[:, None, None])
        embeds = inner.language_model.embed_tokens(batch.input_ids)
        cells = cells.view(count, PAIRS * CELLS, -1).to(embeds.dtype)
        taken = batch.cells[..., None]
        embeds = torch.where(taken >= 0, cells.gather(1, taken.clamp(min=0).expand_as(embeds)), embeds)
        unseen = torch.zeros(batch.mask.shape).masked_fill_(~batch.mask, -1e4)  # what eager attention adds
        hidden = inner.language_model(
            inputs_embeds=embeds,
            attention_mask={"full_attention": unseen},
            position_ids=batch.positions,
            use_cache=False,
        ).last_hidden_state
        targets = batch.labels[:, 1:]
        chosen = targets != IGNORE
        logits = self.qwen.lm_head(hidden[:, :-1][chosen]).float()  # [num_targets, vocab_size]
        answers = functional.cross_entropy(logits, targets[chosen], label_smoothing=0.02)
        return answers, self._patch_loss(seen, batch.patch_labels)

    def _patch_loss(self, seen: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for head, wanted, weight in zip(self.heads, labels, (None, None, None, self.rank_weight), strict=True):
            guess = head(seen).float().flatten(0, 1)  # [patches, classes]
            total = total + functional.cross_entropy(guess, wanted.flatten(), weight, ignore_index=IGNORE)
        return total

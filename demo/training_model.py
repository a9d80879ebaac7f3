"""The `demo` model in training: its forward pass over a packed batch, and heads that exist in training only.

Knows no optimizer and no scene.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration

from demo.dataset import NUM_RANKS, Batch
from demo.model import GRID, IMAGE, SIDE
from demo.packing import additive_mask, answer_loss
from demo.shapes import SHAPES

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]) * 255
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]) * 255


class TrainingModel(nn.Module):
    """The model and four heads that predict what each patch shows, and where in the image it lies."""

    def __init__(self, model: LlavaForConditionalGeneration) -> None:
        super().__init__()
        self.model = model
        width = model.config.vision_config.hidden_size
        # Classes of shape, digit, rank and place.
        self.heads = nn.ModuleList(nn.Linear(width, n) for n in (1 + len(SHAPES), 1 + 10, 1 + NUM_RANKS, 9))
        self.noise: torch.Tensor
        self.register_buffer("noise", torch.randn(256, 3, SIDE, SIDE))
        thirds = (torch.arange(GRID) * 2 + 1) * 3 // (2 * GRID)
        self.place_labels: torch.Tensor  # [NUM_IMAGE_TOKENS]: the ninth of the image that each patch lies in
        self.register_buffer("place_labels", (thirds[:, None] * 3 + thirds).flatten())
        # Flash attention's backward pass is slow on a CPU with short rows and a mask.
        model.set_attn_implementation("eager")

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the answers, and the auxiliary loss of the patches."""
        inner = self.model.model
        pixels = ((batch.pixel_bytes.float() - MEAN) / STD).permute(0, 3, 1, 2)  # [batch, 3, SIDE, SIDE]
        noise = self.noise[torch.randint(len(self.noise), (len(pixels),))]
        pixels = pixels + noise * 0.06 * torch.rand(len(pixels), 1, 1, 1)
        patches = inner.vision_tower(pixels).last_hidden_state[:, 1:]  # [batch, NUM_IMAGE_TOKENS, vision_size]
        embeds = inner.language_model.embed_tokens(batch.input_ids)
        features = inner.multi_modal_projector(patches).to(embeds.dtype)
        embeds = embeds.masked_scatter((batch.input_ids == IMAGE)[..., None], features)
        hidden = inner.language_model(
            inputs_embeds=embeds,
            attention_mask=additive_mask(batch.mask),
            position_ids=batch.positions,
            use_cache=False,
        ).last_hidden_state
        return answer_loss(self.model.lm_head, hidden, batch.labels), self._patch_loss(patches, batch.patch_labels)

    def _patch_loss(self, patches: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        places = self.place_labels.expand(len(patches), -1)
        for head, targets in zip(self.heads, (*labels.unbind(1), places), strict=True):
            logits = head(patches).float().flatten(0, 1)  # [num_patches, classes]
            weight = torch.tensor([1.0] + [3.0] * (logits.shape[1] - 1))  # most patches show background
            total = total + functional.cross_entropy(logits, targets.flatten(), weight)
        return total

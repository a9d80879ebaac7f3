"""The models that are measured: their sizes, and from them the weights that a step reads and the operations it does.

Knows shapes only; `checkpoints` writes such models, `floor` makes times of the counts. Norms, biases, positions and
embeddings are left out: together they are less than a hundredth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PATCH = 14
_PATCH_INPUTS = 3 * PATCH * PATCH


@dataclass(frozen=True)
class Decoder:
    """A Llama, or Qwen2, with an output matrix of its own."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' matrices: each token is multiplied with all of them."""
        kv = self.hidden // self.heads * self.kv_heads
        layer = 2 * self.hidden**2 + 2 * self.hidden * kv + 3 * self.hidden * self.intermediate
        return self.layers * layer

    @property
    def output_weights(self) -> int:
        """Weights of the output matrix: only sampled positions are multiplied with it."""
        return self.hidden * self.vocab

    def attention_operations(self, contexts: int) -> int:
        """Operations of queries that see `contexts` keys, added up over the queries."""
        return 4 * self.layers * self.hidden * contexts


@dataclass(frozen=True)
class Tower:
    """A vision tower: CLIP's, or Qwen2-VL's."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    positions: int
    """Positions of an image: its patches, and CLIP's class token."""


@dataclass(frozen=True)
class Size:
    """One model."""

    family: Literal["llava", "qwen2_vl"]
    decoder: Decoder
    tower: Tower
    image_tokens: int
    """Tokens that stand for an image in a prompt."""
    merged: int = 1
    """Patches that become one such token."""

    @property
    def used_tower_layers(self) -> int:
        """LLaVA takes what comes out of the last but one."""
        return self.tower.layers - (self.family == "llava")

    @property
    def tower_weights(self) -> int:
        """Weights of the layers and the patches' projection: each position is multiplied with all of them."""
        layer = 4 * self.tower.hidden**2 + 2 * self.tower.hidden * self.tower.intermediate
        return self.used_tower_layers * layer + _PATCH_INPUTS * self.tower.hidden

    @property
    def projector_weights(self) -> int:
        """Weights of the two matrices between tower and decoder: each image token is multiplied with both."""
        wide = self.merged * self.tower.hidden
        between = wide if self.family == "qwen2_vl" else self.decoder.hidden
        return wide * between + between * self.decoder.hidden

    @property
    def image_operations(self) -> int:
        """Operations of one image, until its embeddings are there."""
        attention = 4 * self.used_tower_layers * self.tower.hidden * self.tower.positions**2
        matrices = self.tower_weights * self.tower.positions + self.projector_weights * self.image_tokens
        return 2 * matrices + attention


SIZES = {
    "small": Size("llava", Decoder(512, 1408, 8, 8, 4, 8192), Tower(256, 1024, 6, 4, 257), 256),
    "medium": Size("llava", Decoder(2048, 5632, 16, 32, 8, 32000), Tower(1024, 4096, 24, 16, 577), 576),
    "qwen": Size("qwen2_vl", Decoder(512, 1408, 8, 8, 4, 8192), Tower(256, 1024, 6, 4, 768), 192, merged=4),
    "tiny": Size("llava", Decoder(64, 128, 2, 4, 2, 512), Tower(64, 128, 3, 4, 17), 16),
}
"""By name: 75 MB and 2.3 GB of LLaVA in bfloat16, a small Qwen2-VL, and one that only shows that everything runs."""

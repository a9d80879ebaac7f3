"""Trains the demo model from scratch on the CPU, from pictures it draws itself, and saves a Hugging Face checkpoint.

    python -m demo.train OUT --steps 5500

The same arguments give the same pictures, questions and first weights; nothing is downloaded. Sums of bfloat16 numbers
differ from CPU to CPU, so the weights, and with them the last decimals of the accuracies, do as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration

from demo import handwriting, shapes
from demo.lessons import IGNORE, NUM_RANKS, Batch, Packer, draw_lessons
from demo.model import GRID, IMAGE, SIDE, build_model, build_processor, build_tokenizer, learn_words, save
from demo.questions import NO_PICTURE, ask_anything
from demo.school import Recipe, School, run

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]) * 255
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]) * 255


RECIPE = Recipe("pictures", steps=5500, cooldown=1500, lessons=32_000, views=2, report_every=100)


class Pupil(nn.Module):
    """The model with the heads that exist in training only: what every patch shows, and where it lies."""

    def __init__(self, model: LlavaForConditionalGeneration) -> None:
        super().__init__()
        self.llava = model
        width = model.config.vision_config.hidden_size
        self.shape_head = nn.Linear(width, 1 + len(shapes.SHAPES))
        self.digit_head = nn.Linear(width, 11)
        self.rank_head = nn.Linear(width, 1 + NUM_RANKS)
        self.place_head = nn.Linear(width, 9)
        self.noise: torch.Tensor
        self.register_buffer("noise", torch.randn(256, 3, SIDE, SIDE))
        thirds = (torch.arange(GRID) * 2 + 1) * 3 // (2 * GRID)
        self.places: torch.Tensor  # [NUM_IMAGE_TOKENS]: which ninth of the picture each patch lies in
        self.register_buffer("places", (thirds[:, None] * 3 + thirds).flatten())
        # Flash attention's backward pass is slow on a CPU with short rows and a mask.
        model.set_attn_implementation("eager")

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of the answers, and the auxiliary loss of the patches."""
        inner = self.llava.model
        pixels = ((batch.pixel_bytes.float() - MEAN) / STD).permute(0, 3, 1, 2)  # [batch, 3, SIDE, SIDE]
        noise = self.noise[torch.randint(len(self.noise), (len(pixels),))]
        pixels = pixels + noise * 0.06 * torch.rand(len(pixels), 1, 1, 1)
        seen = inner.vision_tower(pixels).last_hidden_state[:, 1:]  # [batch, NUM_IMAGE_TOKENS, vision_size]
        embeds = inner.language_model.embed_tokens(batch.input_ids)
        features = inner.multi_modal_projector(seen).to(embeds.dtype)
        embeds = embeds.masked_scatter((batch.input_ids == IMAGE)[..., None], features)
        blocked = torch.zeros(batch.mask.shape).masked_fill_(~batch.mask, -1e4)  # what eager attention adds
        hidden = inner.language_model(
            inputs_embeds=embeds, attention_mask=blocked, position_ids=batch.positions, use_cache=False
        ).last_hidden_state
        targets = batch.labels[:, 1:]
        chosen = targets != IGNORE
        logits = self.llava.lm_head(hidden[:, :-1][chosen]).float()  # [num_targets, vocab_size]
        answers = functional.cross_entropy(logits, targets[chosen], label_smoothing=0.02)
        patches = sum(
            (
                functional.cross_entropy(
                    head(seen).float().flatten(0, 1),
                    labels.flatten(),
                    weight=torch.tensor([1.0] + [3.0] * (head.out_features - 1)),  # most patches show nothing
                )
                for head, labels in (
                    (self.shape_head, batch.shape_labels),
                    (self.digit_head, batch.digit_labels),
                    (self.rank_head, batch.rank_labels),
                    (self.place_head, self.places.expand(len(pixels), -1)),
                )
            ),
            torch.zeros(()),
        )
        return answers, patches


def first_words(seed: int) -> str:
    rng = random.Random(seed)
    texts = []
    for k in range(8000):
        scene = handwriting.sample_scene(rng) if k % 2 else shapes.sample_scene(rng, "train")
        question, answer = ask_anything(rng, scene)
        texts.append(f"USER: \n{question} ASSISTANT: {answer}")
    words: str = learn_words(texts + [f"USER: ASSISTANT: {NO_PICTURE}"] * 50).to_str()
    return words


class PictureSchool(School):
    def __init__(self, recipe: Recipe, words: str) -> None:
        self.tokenizer = build_tokenizer(Tokenizer.from_str(words))
        pupil = Pupil(build_model(len(self.tokenizer)))
        super().__init__(recipe, words, pupil, pupil.llava)
        if recipe.compiled:
            for part in (pupil.llava.model.vision_tower, pupil.llava.model.language_model):
                part.forward = torch.compile(part.forward, dynamic=False)  # shapes never change: a third less time

    def draw(self, seed: int) -> Callable[[np.ndarray], Batch]:
        packer = Packer(self.tokenizer, seed)
        return partial(packer.pack, draw_lessons(seed, self.recipe.lessons, self.recipe.threads))

    def save(self, out: Path) -> None:
        save(self.average, build_processor(self.tokenizer), str(out))


def main() -> None:
    run(__doc__, RECIPE, first_words, PictureSchool)


if __name__ == "__main__":
    main()

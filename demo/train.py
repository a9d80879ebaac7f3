"""Train the `demo` model from scratch on the CPU, on images drawn here, and save a Hugging Face checkpoint.

    python -m demo.train OUT --steps 5500

The same arguments give the same images, questions and initial weights; nothing is downloaded. Sums of bfloat16 numbers
differ from CPU to CPU, and with them the weights and the last decimals of the accuracies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from demo import handwriting, shapes
from demo.dataset import Batch, Packer, draw_dataset
from demo.model import build_model, build_processor, build_tokenizer, save, train_tokenizer
from demo.questions import NO_IMAGE, ask_anything
from demo.trainer import Recipe, Trainer, run
from demo.training_model import TrainingModel

RECIPE = Recipe("images", steps=5500, cooldown=1500, samples=32_000, views=2, report_every=100)


def train_vocabulary(seed: int) -> str:
    """Return a tokenizer trained on sample questions and answers, as JSON."""
    rng = random.Random(seed)
    texts = []
    for k in range(8000):
        scene = handwriting.sample_scene(rng) if k % 2 else shapes.sample_scene(rng, "train")
        question, answer = ask_anything(rng, scene)
        texts.append(f"USER: \n{question} ASSISTANT: {answer}")
    vocabulary: str = train_tokenizer(texts + [f"USER: ASSISTANT: {NO_IMAGE}"] * 50).to_str()
    return vocabulary


class ImageTrainer(Trainer):
    """Trains the `demo` model."""

    def __init__(self, recipe: Recipe, vocabulary: str) -> None:
        self.tokenizer = build_tokenizer(Tokenizer.from_str(vocabulary))
        model = build_model(len(self.tokenizer))
        super().__init__(recipe, vocabulary, TrainingModel(model), model)
        if recipe.compiled:
            for part in (model.model.vision_tower, model.model.language_model):
                part.forward = torch.compile(part.forward, dynamic=False)  # shapes never change: a third less time

    def draw_samples(self, seed: int) -> Callable[[np.ndarray], Batch]:
        packer = Packer(self.tokenizer, seed)
        return partial(packer.pack, draw_dataset(seed, self.recipe.samples, self.recipe.threads))

    def save(self, out: Path) -> None:
        save(self.average, build_processor(self.tokenizer), str(out))


def main() -> None:
    run(__doc__, RECIPE, train_vocabulary, ImageTrainer)


if __name__ == "__main__":
    main()

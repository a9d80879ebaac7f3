"""Train the `demo-video` model from scratch on the CPU, on videos drawn here, and save a Hugging Face checkpoint.

    python -m demo.video.train OUT --steps 5000

The same arguments give the same videos, questions and initial weights; nothing is downloaded. Sums of bfloat16 numbers
differ from CPU to CPU, and with them the weights and the last decimals of the accuracies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from demo.trainer import Recipe, Trainer, run
from demo.video.dataset import draw_dataset
from demo.video.model import build_model, build_tokenizer, save, train_tokenizer
from demo.video.moving_shapes import sample_scene
from demo.video.packing import Batch, Packer
from demo.video.questions import NO_VIDEO, ask_anything
from demo.video.training_model import TrainingModel

# More views than of an image: each may be mirrored or reversed.
RECIPE = Recipe("videos", steps=5000, cooldown=1000, samples=8000, views=4, report_every=50)

Vocabulary = tuple[dict[str, int], list[tuple[str, str]]]  # tokens and merges


def train_vocabulary(seed: int) -> Vocabulary:
    """Return the tokens and merges of a BPE trained on sample questions and answers."""
    rng = random.Random(seed)
    texts = []
    for _ in range(8000):
        question, answer = ask_anything(rng, sample_scene(rng, "train"))
        texts += [question, answer, "user\n", "assistant\n"]
    return train_tokenizer(texts + [NO_VIDEO] * 200)


class VideoTrainer(Trainer):
    """Trains the `demo-video` model."""

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary) -> None:
        self.tokenizer = build_tokenizer(*vocabulary)
        model = build_model(len(self.tokenizer))
        training_model = TrainingModel(model)
        super().__init__(recipe, vocabulary, training_model, model)
        if recipe.compiled:  # shapes never change: a third less time
            text = model.model.language_model
            text.forward = torch.compile(text.forward, dynamic=False)
            training_model.encode = torch.compile(training_model.encode, dynamic=False)  # type: ignore[method-assign]

    def draw_samples(self, seed: int) -> Callable[[np.ndarray], Batch]:
        packer = Packer(self.tokenizer, seed)
        samples = draw_dataset(seed, self.recipe.samples, self.recipe.threads)
        return lambda indices: packer.pack([samples[k] for k in indices])

    def save(self, out: Path) -> None:
        save(self.average, self.tokenizer, out)


def main() -> None:
    run(__doc__, RECIPE, train_vocabulary, VideoTrainer)


if __name__ == "__main__":
    main()

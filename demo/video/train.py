"""Trains the video demo's model from scratch on the CPU, from clips it draws, and saves a Hugging Face checkpoint.

    python -m demo.video.train OUT --steps 5000

The same arguments give the same clips, questions and first weights; nothing is downloaded. Sums of bfloat16 numbers
differ from CPU to CPU, so the weights, and with them the last decimals of the accuracies, do as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from demo.school import Recipe, School, run
from demo.video.clips import sample_scene
from demo.video.lessons import draw_lessons
from demo.video.model import build_model, build_tokenizer, learn_words, save
from demo.video.packing import Batch, Packer
from demo.video.pupil import Pupil
from demo.video.questions import NO_VIDEO, ask_anything

# More views than of a picture: each may be mirrored or played backwards.
RECIPE = Recipe("clips", steps=5000, cooldown=1000, lessons=8000, views=4, report_every=50)

Words = tuple[dict[str, int], list[tuple[str, str]]]


def first_words(seed: int) -> Words:
    rng = random.Random(seed)
    texts = []
    for _ in range(8000):
        question, answer = ask_anything(rng, sample_scene(rng, "train"))
        texts += [question, answer, "user\n", "assistant\n"]
    return learn_words(texts + [NO_VIDEO] * 200)


class ClipSchool(School):
    def __init__(self, recipe: Recipe, words: Words) -> None:
        self.tokenizer = build_tokenizer(*words)
        pupil = Pupil(build_model(len(self.tokenizer)))
        super().__init__(recipe, words, pupil, pupil.qwen)
        if recipe.compiled:  # shapes never change: a third less time
            text = pupil.qwen.model.language_model
            text.forward = torch.compile(text.forward, dynamic=False)
            pupil.see = torch.compile(pupil.see, dynamic=False)  # type: ignore[method-assign]

    def draw(self, seed: int) -> Callable[[np.ndarray], Batch]:
        packer = Packer(self.tokenizer, seed)
        lessons = draw_lessons(seed, self.recipe.lessons, self.recipe.threads)
        return lambda chosen: packer.pack([lessons[k] for k in chosen])

    def save(self, out: Path) -> None:
        save(self.average, self.tokenizer, out)


def main() -> None:
    run(__doc__, RECIPE, first_words, ClipSchool)


if __name__ == "__main__":
    main()

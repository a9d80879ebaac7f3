"""Trains the video demo's model from scratch on the CPU, from clips it draws, and saves a Hugging Face checkpoint.

    python -m demo.video.train OUT --steps 5000

The same arguments give the same clips, questions and first weights; nothing is downloaded. Sums of bfloat16 numbers
differ from CPU to CPU, so the weights, and with them the last decimals of the accuracies, do as well.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from demo.optimizers import build_optimizers, learning_rate_share
from demo.video.clips import sample_scene
from demo.video.lessons import draw_lessons
from demo.video.model import build_model, build_tokenizer, learn_words, save
from demo.video.packing import Batch, Packer
from demo.video.pupil import Pupil
from demo.video.questions import NO_VIDEO, ask_anything


@dataclass(frozen=True)
class Recipe:
    steps: int = 5000
    batch: int = 64
    cooldown: int = 1000  # the last steps, in which the learning rates sink
    clips: int = 8000  # drawn for one term; a new term begins when each was seen `views` times, mirrored or not
    views: int = 4
    muon_rate: float = 0.015
    adam_rate: float = 1.5e-3
    weight_decay: float = 0.05
    patch_loss: float = 1.0  # weight of the auxiliary losses; it sinks with the rates, to a quarter
    average: float = 0.998  # decay of the moving average of the weights, which is what is saved
    seed: int = 0
    threads: int = 2
    compiled: bool = True


Words = tuple[dict[str, int], list[tuple[str, str]]]


def first_words(seed: int) -> Words:
    rng = random.Random(seed)
    texts = []
    for _ in range(8000):
        question, answer = ask_anything(rng, sample_scene(rng, "train"))
        texts += [question, answer, "user\n", "assistant\n"]
    return learn_words(texts + [NO_VIDEO] * 200)


class School:
    """The pupil, its optimizers and the average of its weights.

    A term is the unit of work. It depends on nothing but its number and the state before it, so that training can stop
    after any term and go on later.
    """

    def __init__(self, recipe: Recipe, words: Words) -> None:
        torch.set_num_threads(recipe.threads)
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.words = words
        self.tokenizer = build_tokenizer(*words)
        self.pupil = Pupil(build_model(len(self.tokenizer)))
        self.average = copy.deepcopy(self.pupil.qwen)
        self.optimizers = build_optimizers(
            self.pupil,
            (".layers.", ".blocks."),
            muon_rate=recipe.muon_rate,
            adam_rate=recipe.adam_rate,
            weight_decay=recipe.weight_decay,
        )
        self.step = 0
        self.term = 0
        self.seconds = 0.0
        if recipe.compiled:  # shapes never change: a third less time
            text = self.pupil.qwen.model.language_model
            text.forward = torch.compile(text.forward, dynamic=False)
            self.pupil.see = torch.compile(self.pupil.see, dynamic=False)  # type: ignore[method-assign]

    def state(self) -> dict[str, Any]:
        return {
            "words": self.words,
            "pupil": self.pupil.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": (self.step, self.term, self.seconds),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.pupil.load_state_dict(state["pupil"])
        self.average.load_state_dict(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.term, self.seconds = state["counters"]

    def teach_term(self) -> None:
        """Draws clips and takes a step for each batch of them, until they are used up or training is complete."""
        recipe = self.recipe
        self.term += 1
        before, began = self.seconds, time.time()
        seed = recipe.seed * 1000 + self.term
        torch.manual_seed(seed)
        order, packer = np.random.default_rng(seed), Packer(self.tokenizer, seed)
        lessons = draw_lessons(seed, recipe.clips, recipe.threads)
        print(f"term {self.term}: {recipe.clips} clips drawn in {time.time() - began:.0f} s", flush=True)
        rounds = np.concatenate([order.permutation(recipe.clips) for _ in range(recipe.views)])
        batches = rounds[: len(rounds) // recipe.batch * recipe.batch].reshape(-1, recipe.batch).tolist()
        with ThreadPoolExecutor(1) as clerk:  # packs the next batch during this one
            ahead = clerk.submit(packer.pack, [lessons[k] for k in batches[0]])
            for following in (*batches[1:], batches[0]):
                batch = ahead.result()
                ahead = clerk.submit(packer.pack, [lessons[k] for k in following])
                answers, patches = self._learn(batch)
                self.seconds = before + time.time() - began
                if self.step % 50 == 0:
                    losses = f"answers {answers:.4f} patches {patches:.4f}"
                    print(f"step {self.step} {losses} {self.seconds:.0f} s", flush=True)
                if self.step == recipe.steps:
                    return

    def _learn(self, batch: Batch) -> tuple[float, float]:
        recipe, share = self.recipe, learning_rate_share(self.step, self.recipe.steps, self.recipe.cooldown)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_lr"] * share
        with torch.autocast("cpu", torch.bfloat16):
            answers, patches = self.pupil.losses(batch)
        weight = recipe.patch_loss * max(0.25, min(1.0, share))
        (answers + weight * patches).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.pupil.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        decay = min(recipe.average, (self.step + 1) / (self.step + 20))
        with torch.no_grad():
            ours, theirs = list(self.average.parameters()), list(self.pupil.qwen.parameters())
            torch._foreach_lerp_(ours, theirs, 1 - decay)
        self.step += 1
        return answers.item(), patches.item()


def train(out: Path, recipe: Recipe, state: Path | None) -> None:
    saved = torch.load(state) if state is not None and state.exists() else None
    school = School(recipe, saved["words"] if saved else first_words(recipe.seed))
    if saved:
        school.restore(saved)
    size = sum(p.numel() for p in school.average.parameters())
    print(f"{size:,} parameters, {len(school.tokenizer)} tokens, from step {school.step}", flush=True)
    while school.step < recipe.steps:
        school.teach_term()
        save(school.average, school.tokenizer, out)
        if state is not None and school.step < recipe.steps:
            torch.save(school.state(), state)
    print(f"{school.step} steps of {recipe.batch} clips in {school.seconds / 60:.1f} minutes", flush=True)


def main() -> None:
    default = Recipe()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--cooldown", type=int, default=default.cooldown)
    parser.add_argument("--clips", type=int, default=default.clips)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument("--no-compile", action="store_true", help="where there is no C++ compiler")
    parser.add_argument("--state", type=Path, help="kept after every term; training goes on from it if it is there")
    given = parser.parse_args()
    recipe = Recipe(
        steps=given.steps,
        cooldown=given.cooldown,
        clips=given.clips,
        seed=given.seed,
        threads=given.threads,
        compiled=not given.no_compile,
    )
    train(given.out, recipe, given.state)


if __name__ == "__main__":
    main()

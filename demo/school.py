"""How both demo models learn: a recipe, steps in terms, a state file from which training goes on, the command line.

Knows nothing of words, pictures and clips, nor of what the model is; `train.py` and `video/train.py` do.
"""

from __future__ import annotations

import argparse
import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from demo.optimizers import build_optimizers, learning_rate_share


@dataclass(frozen=True)
class Recipe:
    things: str  # what lessons are about: "pictures" or "clips"
    steps: int
    cooldown: int  # the last steps, in which the learning rates sink
    lessons: int  # drawn for one term; a new term begins when each was seen `views` times
    views: int
    report_every: int  # steps between two lines about the losses
    batch: int = 64
    muon_rate: float = 0.015
    adam_rate: float = 1.5e-3
    weight_decay: float = 0.05
    patch_loss: float = 1.0  # weight of the auxiliary losses; it sinks with the rates, to a quarter
    average: float = 0.998  # decay of the moving average of the weights, which is what is saved
    seed: int = 0
    threads: int = 2
    compiled: bool = True


class School(ABC):
    """The pupil, its optimizers and the average of its model's weights.

    A term is the unit of work. It depends on nothing but its number and the state before it, so that training can stop
    after any term and go on later.
    """

    def __init__(self, recipe: Recipe, words: Any, pupil: nn.Module, model: PreTrainedModel) -> None:
        """Keep them, and make the rest.

        Args:
            recipe: to teach by.
            words: what the tokenizer is built from; kept in the state.
            pupil: `model`, and the heads that exist in training only. Its `losses` of a batch are the loss of the
                answers and the auxiliary loss of the patches.
            model: the average of its weights is what is saved.
        """
        self.recipe = recipe
        self.words = words
        self.pupil = pupil
        self.model = model
        self.average = copy.deepcopy(model)
        self.optimizers = build_optimizers(
            pupil,
            (".layers.", ".blocks."),
            muon_rate=recipe.muon_rate,
            adam_rate=recipe.adam_rate,
            weight_decay=recipe.weight_decay,
        )
        self.step = 0
        self.term = 0
        self.seconds = 0.0

    @abstractmethod
    def draw(self, seed: int) -> Callable[[np.ndarray], Any]:
        """Draws the lessons of a term; what it returns packs those with the given numbers into a batch."""

    @abstractmethod
    def save(self, out: Path) -> None:
        """Writes the average as a Hugging Face checkpoint."""

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

    def train(self, out: Path, state: Path | None) -> None:
        """Teaches term after term until training is complete; after each, writes the checkpoint and the state."""
        recipe = self.recipe
        size = sum(p.numel() for p in self.average.parameters())
        tokens = self.average.get_input_embeddings().num_embeddings
        print(f"{size:,} parameters, {tokens} tokens, from step {self.step}", flush=True)
        while self.step < recipe.steps:
            self.teach_term()
            self.save(out)
            if state is not None and self.step < recipe.steps:
                torch.save(self.state(), state)
        print(f"{self.step} steps of {recipe.batch} {recipe.things} in {self.seconds / 60:.1f} minutes", flush=True)

    def teach_term(self) -> None:
        """Draws lessons and takes a step for each batch of them, until they are used up or training is complete."""
        recipe = self.recipe
        self.term += 1
        before, began = self.seconds, time.time()
        seed = recipe.seed * 1000 + self.term
        torch.manual_seed(seed)
        pack = self.draw(seed)
        print(f"term {self.term}: {recipe.lessons} {recipe.things} drawn in {time.time() - began:.0f} s", flush=True)
        order = np.random.default_rng(seed)
        rounds = np.concatenate([order.permutation(recipe.lessons) for _ in range(recipe.views)])
        batches = rounds[: len(rounds) // recipe.batch * recipe.batch].reshape(-1, recipe.batch)
        with ThreadPoolExecutor(1) as clerk:  # packs the next batch during this one
            ahead = clerk.submit(pack, batches[0])
            for following in (*batches[1:], batches[0]):
                batch = ahead.result()
                ahead = clerk.submit(pack, following)
                answers, patches = self._learn(batch)
                self.seconds = before + time.time() - began
                if self.step % recipe.report_every == 0:
                    losses = f"answers {answers:.4f} patches {patches:.4f}"
                    print(f"step {self.step} {losses} {self.seconds:.0f} s", flush=True)
                if self.step == recipe.steps:
                    return

    def _learn(self, batch: Any) -> tuple[float, float]:
        recipe, share = self.recipe, learning_rate_share(self.step, self.recipe.steps, self.recipe.cooldown)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_lr"] * share
        with torch.autocast("cpu", torch.bfloat16):
            answers, patches = self.pupil.losses(batch)  # type: ignore[operator]
        weight = recipe.patch_loss * max(0.25, min(1.0, share))
        (answers + weight * patches).backward()
        nn.utils.clip_grad_norm_(self.pupil.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        decay = min(recipe.average, (self.step + 1) / (self.step + 20))
        with torch.no_grad():
            ours, theirs = list(self.average.parameters()), list(self.model.parameters())
            torch._foreach_lerp_(ours, theirs, 1 - decay)
        self.step += 1
        return answers.item(), patches.item()


def run(
    doc: str | None, default: Recipe, first_words: Callable[[int], Any], open_school: Callable[[Recipe, Any], School]
) -> None:
    """The command line of a training.

    Args:
        doc: what `--help` says.
        default: the recipe, unless arguments change it.
        first_words: the words of a new pupil, from the seed; one that goes on learning keeps its own.
        open_school: makes the school, from recipe and words.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--cooldown", type=int, default=default.cooldown)
    parser.add_argument(f"--{default.things}", type=int, default=default.lessons)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument("--no-compile", action="store_true", help="where there is no C++ compiler")
    parser.add_argument("--state", type=Path, help="kept after every term; training goes on from it if it is there")
    given = parser.parse_args()
    recipe = replace(
        default,
        steps=given.steps,
        cooldown=given.cooldown,
        lessons=getattr(given, default.things),
        seed=given.seed,
        threads=given.threads,
        compiled=not given.no_compile,
    )
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    saved = torch.load(given.state) if given.state is not None and given.state.exists() else None
    school = open_school(recipe, saved["words"] if saved else first_words(recipe.seed))
    if saved:
        school.restore(saved)
    school.train(given.out, given.state)

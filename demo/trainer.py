"""Trains a demo model: the recipe, epochs and steps, the state file for resuming, the command line.

Knows nothing of images, videos or model architectures; `train.py` and `video/train.py` do.
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
    media: str  # what samples are: "images" or "videos"
    steps: int
    cooldown: int  # the last steps, in which the learning rates fall
    samples: int  # drawn for each epoch
    views: int  # how often an epoch shows each sample
    report_every: int  # steps between two lines about the losses
    batch_size: int = 64
    muon_rate: float = 0.015
    adam_rate: float = 1.5e-3
    weight_decay: float = 0.05
    patch_loss: float = 1.0  # weight of the auxiliary losses; it falls with the rates, to a quarter
    average: float = 0.998  # decay of the moving average of the weights, which is saved
    seed: int = 0
    threads: int = 2
    compiled: bool = True


class Trainer(ABC):
    """The model in training, its optimizers and the moving average of its weights.

    An epoch depends only on its number and the state before it, so training can stop after any epoch and resume.
    """

    def __init__(self, recipe: Recipe, vocabulary: Any, training_model: nn.Module, model: PreTrainedModel) -> None:
        """Build optimizers and average.

        Args:
            vocabulary: what the tokenizer is built from; part of the state.
            training_model: `model` and the heads that exist in training only. Its `losses` of a batch are the loss of
                the answers and the auxiliary loss of the patches.
            model: the model whose averaged weights are saved.
        """
        self.recipe = recipe
        self.vocabulary = vocabulary
        self.training_model = training_model
        self.model = model
        self.average = copy.deepcopy(model)
        self.optimizers = build_optimizers(
            training_model,
            (".layers.", ".blocks."),
            muon_rate=recipe.muon_rate,
            adam_rate=recipe.adam_rate,
            weight_decay=recipe.weight_decay,
        )
        self.step = 0
        self.epoch = 0
        self.seconds = 0.0

    @abstractmethod
    def draw_samples(self, seed: int) -> Callable[[np.ndarray], Any]:
        """Draw the samples of an epoch; return a function from sample indices to a batch."""

    @abstractmethod
    def save(self, out: Path) -> None:
        """Write the average as a Hugging Face checkpoint."""

    def state(self) -> dict[str, Any]:
        """Return everything that `restore` needs."""
        return {
            "vocabulary": self.vocabulary,
            "model": self.training_model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": (self.step, self.epoch, self.seconds),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state; the vocabulary was given to `__init__`."""
        self.training_model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.epoch, self.seconds = state["counters"]

    def train(self, out: Path, state: Path | None) -> None:
        """Train until the last step; write the checkpoint and the state after each epoch."""
        recipe = self.recipe
        size = sum(p.numel() for p in self.average.parameters())
        tokens = self.average.get_input_embeddings().num_embeddings
        print(f"{size:,} parameters, {tokens} tokens, from step {self.step}", flush=True)
        while self.step < recipe.steps:
            self.train_epoch()
            self.save(out)
            if state is not None and self.step < recipe.steps:
                torch.save(self.state(), state)
        minutes = self.seconds / 60
        print(f"{self.step} steps of {recipe.batch_size} {recipe.media} in {minutes:.1f} minutes", flush=True)

    def train_epoch(self) -> None:
        """Draw samples and take one step for each batch of them, up to the last step of the training."""
        recipe = self.recipe
        self.epoch += 1
        before, began = self.seconds, time.time()
        seed = recipe.seed * 1000 + self.epoch
        torch.manual_seed(seed)
        make_batch = self.draw_samples(seed)
        print(f"epoch {self.epoch}: {recipe.samples} {recipe.media} drawn in {time.time() - began:.0f} s", flush=True)
        rng = np.random.default_rng(seed)
        order = np.concatenate([rng.permutation(recipe.samples) for _ in range(recipe.views)])
        batches = order[: len(order) // recipe.batch_size * recipe.batch_size].reshape(-1, recipe.batch_size)
        with ThreadPoolExecutor(1) as prefetcher:  # makes the next batch during this step
            prefetched = prefetcher.submit(make_batch, batches[0])
            for following in (*batches[1:], batches[0]):
                batch = prefetched.result()
                prefetched = prefetcher.submit(make_batch, following)
                answers, patches = self._train_step(batch)
                self.seconds = before + time.time() - began
                if self.step % recipe.report_every == 0:
                    losses = f"answers {answers:.4f} patches {patches:.4f}"
                    print(f"step {self.step} {losses} {self.seconds:.0f} s", flush=True)
                if self.step == recipe.steps:
                    return

    def _train_step(self, batch: Any) -> tuple[float, float]:
        recipe, share = self.recipe, learning_rate_share(self.step, self.recipe.steps, self.recipe.cooldown)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_lr"] * share
        with torch.autocast("cpu", torch.bfloat16):
            answers, patches = self.training_model.losses(batch)  # type: ignore[operator]
        weight = recipe.patch_loss * max(0.25, min(1.0, share))
        (answers + weight * patches).backward()
        nn.utils.clip_grad_norm_(self.training_model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        decay = min(recipe.average, (self.step + 1) / (self.step + 20))
        with torch.no_grad():
            averaged, current = list(self.average.parameters()), list(self.model.parameters())
            torch._foreach_lerp_(averaged, current, 1 - decay)
        self.step += 1
        return answers.item(), patches.item()


def run(
    doc: str | None,
    default: Recipe,
    train_vocabulary: Callable[[int], Any],
    build_trainer: Callable[[Recipe, Any], Trainer],
) -> None:
    """Train from the command line.

    Args:
        doc: the text of `--help`.
        default: the recipe, unless arguments change it.
        train_vocabulary: the vocabulary of a new model, from the seed; a resumed training keeps its own.
        build_trainer: the trainer, from recipe and vocabulary.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--cooldown", type=int, default=default.cooldown)
    parser.add_argument(f"--{default.media}", type=int, default=default.samples, help="drawn for each epoch")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument("--no-compile", action="store_true", help="for machines without a C++ compiler")
    parser.add_argument("--state", type=Path, help="written after every epoch; training resumes from it if it exists")
    given = parser.parse_args()
    recipe = replace(
        default,
        steps=given.steps,
        cooldown=given.cooldown,
        samples=getattr(given, default.media),
        seed=given.seed,
        threads=given.threads,
        compiled=not given.no_compile,
    )
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    saved = torch.load(given.state) if given.state is not None and given.state.exists() else None
    trainer = build_trainer(recipe, saved["vocabulary"] if saved else train_vocabulary(recipe.seed))
    if saved:
        trainer.restore(saved)
    trainer.train(given.out, given.state)

"""Trains the demo model from scratch on the CPU, from pictures it draws itself, and saves a Hugging Face checkpoint.

    python -m demo.train OUT --steps 5500

The same arguments give the same pictures, questions and first weights; nothing is downloaded. Sums of bfloat16 numbers
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
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration

from demo import handwriting, shapes
from demo.lessons import IGNORE, NUM_RANKS, Batch, Packer, draw_lessons
from demo.model import GRID, IMAGE, SIDE, build_model, build_processor, build_tokenizer, learn_words, save
from demo.optimizers import build_optimizers, learning_rate_share
from demo.questions import NO_PICTURE, ask_anything

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]) * 255
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]) * 255


@dataclass(frozen=True)
class Recipe:
    steps: int = 5500
    batch: int = 64
    cooldown: int = 1500  # the last steps, in which the learning rates sink
    pictures: int = 32_000  # drawn for one term; a new term begins when each was seen `views` times
    views: int = 2
    muon_rate: float = 0.015
    adam_rate: float = 1.5e-3
    weight_decay: float = 0.05
    patch_loss: float = 1.0  # weight of the auxiliary losses; it sinks with the rates, to a quarter
    average: float = 0.998  # decay of the moving average of the weights, which is what is saved
    seed: int = 0
    threads: int = 2
    compiled: bool = True


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


def first_words(seed: int) -> Tokenizer:
    rng = random.Random(seed)
    texts = []
    for k in range(8000):
        scene = handwriting.sample_scene(rng) if k % 2 else shapes.sample_scene(rng, "train")
        question, answer = ask_anything(rng, scene)
        texts.append(f"USER: \n{question} ASSISTANT: {answer}")
    return learn_words(texts + [f"USER: ASSISTANT: {NO_PICTURE}"] * 50)


class School:
    """The pupil, its optimizers and the average of its weights.

    A term is the unit of work. It depends on nothing but its number and the state before it, so that training can stop
    after any term and go on later.
    """

    def __init__(self, recipe: Recipe, words: Tokenizer) -> None:
        torch.set_num_threads(recipe.threads)
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.tokenizer = build_tokenizer(words)
        self.pupil = Pupil(build_model(len(self.tokenizer)))
        self.average = copy.deepcopy(self.pupil.llava)
        self.optimizers = build_optimizers(
            self.pupil,
            (".layers.",),
            muon_rate=recipe.muon_rate,
            adam_rate=recipe.adam_rate,
            weight_decay=recipe.weight_decay,
        )
        self.step = 0
        self.term = 0
        self.seconds = 0.0
        if recipe.compiled:
            for part in (self.pupil.llava.model.vision_tower, self.pupil.llava.model.language_model):
                part.forward = torch.compile(part.forward, dynamic=False)  # shapes never change: a third less time

    def state(self) -> dict[str, Any]:
        return {
            "words": self.tokenizer.backend_tokenizer.to_str(),
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
        """Draws pictures and takes a step for each batch of them, until they are used up or training is complete."""
        recipe = self.recipe
        self.term += 1
        before, began = self.seconds, time.time()
        seed = recipe.seed * 1000 + self.term
        torch.manual_seed(seed)
        order, packer = np.random.default_rng(seed), Packer(self.tokenizer, seed)
        lessons = draw_lessons(seed, recipe.pictures, recipe.threads)
        print(f"term {self.term}: {recipe.pictures} pictures drawn in {time.time() - began:.0f} s", flush=True)
        rounds = np.concatenate([order.permutation(recipe.pictures) for _ in range(recipe.views)])
        batches = rounds[: len(rounds) // recipe.batch * recipe.batch].reshape(-1, recipe.batch)
        with ThreadPoolExecutor(1) as clerk:  # packs the next batch during this one
            ahead = clerk.submit(packer.pack, lessons, batches[0])
            for following in (*batches[1:], batches[0]):
                batch = ahead.result()
                ahead = clerk.submit(packer.pack, lessons, following)
                answers, patches = self._learn(batch)
                self.seconds = before + time.time() - began
                if self.step % 100 == 0:
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
            ours, theirs = list(self.average.parameters()), list(self.pupil.llava.parameters())
            torch._foreach_lerp_(ours, theirs, 1 - decay)
        self.step += 1
        return answers.item(), patches.item()


def train(out: Path, recipe: Recipe, state: Path | None) -> None:
    saved = torch.load(state) if state is not None and state.exists() else None
    school = School(recipe, Tokenizer.from_str(saved["words"]) if saved else first_words(recipe.seed))
    processor = build_processor(school.tokenizer)
    if saved:
        school.restore(saved)
    size = sum(p.numel() for p in school.average.parameters())
    print(f"{size:,} parameters, {len(school.tokenizer)} tokens, from step {school.step}", flush=True)
    while school.step < recipe.steps:
        school.teach_term()
        save(school.average, processor, str(out))
        if state is not None and school.step < recipe.steps:
            torch.save(school.state(), state)
    print(f"{school.step} steps of {recipe.batch} pictures in {school.seconds / 60:.1f} minutes", flush=True)


def main() -> None:
    default = Recipe()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--cooldown", type=int, default=default.cooldown)
    parser.add_argument("--pictures", type=int, default=default.pictures)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument("--no-compile", action="store_true", help="where there is no C++ compiler")
    parser.add_argument("--state", type=Path, help="kept after every term; training goes on from it if it is there")
    given = parser.parse_args()
    recipe = Recipe(
        steps=given.steps,
        cooldown=given.cooldown,
        pictures=given.pictures,
        seed=given.seed,
        threads=given.threads,
        compiled=not given.no_compile,
    )
    train(given.out, recipe, given.state)


if __name__ == "__main__":
    main()

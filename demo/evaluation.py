"""Exact-answer accuracy of a checkpoint: tasks, answers by corellm, the table, the model card, the command line.

Knows nothing of what images and videos show; `evaluate.py` and `video/evaluate.py` do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from PIL import Image

TABLE_BEGIN, TABLE_END = "<!-- accuracies: begin -->", "<!-- accuracies: end -->"
REQUIRED = 0.95
MAX_TOKENS = 16


@dataclass(frozen=True)
class Task:
    media: Image.Image | bytes  # an image, or a video as an mp4 file
    prompt: str
    answer: str


Generate = Callable[[list[Task]], list[str]]  # the answers of a model
Load = Callable[[str, str], Generate]  # from a checkpoint's path and a dtype
Measure = Callable[[Generate, int, int, list[str]], dict[str, list[float]]]


def load_corellm(
    modality: Literal["image", "video"], path: str, dtype: str, *, quantization: str | None = None
) -> Generate:
    """Return a function that answers tasks with corellm."""
    from corellm import LLM, SamplingParams

    llm = LLM(path, dtype=dtype, quantization=quantization)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

    def generate(tasks: list[Task]) -> list[str]:
        requests = [{"prompt": task.prompt, "multi_modal_data": {modality: task.media}} for task in tasks]
        return [output.outputs[0].text for output in llm.generate(requests, params, use_tqdm=False)]

    return generate


def accuracy(generate: Generate, tasks: list[Task], cell: str, mistakes: list[str]) -> float:
    """Return the share of exact answers; append a line about each wrong one to `mistakes`, with the cell's name."""
    outputs = [text.strip() for text in generate(tasks)]
    wrong = [(text, task) for text, task in zip(outputs, tasks, strict=True) if text != task.answer]
    mistakes += [f"{cell}: {task.prompt!r} -> {text!r}, not {task.answer!r}" for text, task in wrong]
    return (len(tasks) - len(wrong)) / len(tasks)


def as_markdown(table: dict[str, list[float]], columns: Collection[str], count: int) -> str:
    """Return the table, in percent, with the mean of each row."""
    lines = [f"| question | {' | '.join(columns)} | all |", "|---|" + "---:|" * (len(columns) + 1)]
    for row, shares in table.items():
        cells = " | ".join(f"{100 * share:.1f}" for share in (*shares, sum(shares) / len(shares)))
        lines.append(f"| {row} | {cells} |")
    total = count * len(columns)
    return "\n".join([*lines, "", f"Exact answers in percent; {count} questions a cell, {total} a row."])


def write_card(card: Path, text: str) -> None:
    """Replace the text between the two markers of a model card."""
    before, rest = card.read_text(encoding="utf-8").split(TABLE_BEGIN)
    after = rest.split(TABLE_END)[1]
    card.write_text(f"{before}{TABLE_BEGIN}\n{text}\n{TABLE_END}{after}", encoding="utf-8")


def run(
    doc: str | None,
    checkpoint: Path,
    modality: Literal["image", "video"],
    load_transformers: Load,
    measure: Measure,
    columns: Collection[str],
    count: int,
) -> int:
    """Evaluate from the command line; return the exit code, 1 if a row is below REQUIRED.

    Args:
        doc: the text of `--help`.
        checkpoint: the default checkpoint.
        modality: what the tasks' media are.
        load_transformers: the Transformers backend.
        measure: from the model's answers, questions a cell, seed and a list for mistakes, `{row: share per column}`.
        columns: their names.
        count: questions a cell, by default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=checkpoint)
    parser.add_argument("--backend", choices=("corellm", "transformers"), default="corellm")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--quantization", choices=("int8",), help="round corellm's weights to 8 bits")
    parser.add_argument("--count", type=int, default=count, help="questions for each cell of the table")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--write", action="store_true", help="put the table into the checkpoint's README.md")
    parser.add_argument("--mistakes", action="store_true", help="print every wrong answer")
    given = parser.parse_args()
    if given.quantization and given.backend != "corellm":
        parser.error("--quantization needs --backend corellm")
    if given.quantization and given.write:
        parser.error("the model card is about the checkpoint's own weights: leave --write out")
    backends: Mapping[str, Load] = {
        "corellm": partial(load_corellm, modality, quantization=given.quantization),
        "transformers": load_transformers,
    }
    mistakes: list[str] = []
    generate = backends[given.backend](str(given.checkpoint), given.dtype)
    table = measure(generate, given.count, given.seed, mistakes)
    text = as_markdown(table, columns, given.count)
    print("\n".join([*(mistakes if given.mistakes else []), text]))
    if given.write:
        write_card(given.checkpoint / "README.md", text)
    low = [row for row, shares in table.items() if sum(shares) / len(shares) < REQUIRED]
    if low:
        print(f"below {REQUIRED:.0%}: {', '.join(low)}", file=sys.stderr)
    return 1 if low else 0

"""Asks a checkpoint about pictures it never met, and says how often its answer is exactly right.

    python -m demo.evaluate                               the checkpoint of corellm-llava, with corellm
    python -m demo.evaluate --backend transformers        the same questions, with Hugging Face Transformers
    python -m demo.evaluate --write                       and puts the table into the checkpoint's model card

Exits with 1 when any kind of question is below 95 %.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from demo import handwriting, shapes
from demo.model import prompt
from demo.questions import COUNT_WORDS, SHAPE_KINDS, ask, right_answer

CHECKPOINT = Path(__file__).resolve().parent.parent / "plugins/llava/src/corellm_llava/demo"
TABLE_BEGIN, TABLE_END = "<!-- accuracies: begin -->", "<!-- accuracies: end -->"
REQUIRED = 0.95
MAX_TOKENS = 16

# Column -> picture sizes, of which each picture takes one.
SIZES: dict[str, tuple[tuple[int, int], ...]] = {
    "56 px": ((56, 56),),
    "224 px": ((224, 224),),
    "480 px": ((480, 480),),
    "not square": ((320, 240), (120, 96), (400, 250), (200, 240)),
}


@dataclass(frozen=True)
class Task:
    image: Image.Image
    prompt: str
    answer: str


Maker = Callable[[random.Random, tuple[int, int]], Task]
Answerer = Callable[[list[Task]], list[str]]


def _shape_task(kind: str, part: shapes.Part, rng: random.Random, size: tuple[int, int]) -> Task:
    scene = shapes.sample_scene(rng, part)
    while kind == "where" and not scene.place:
        scene = shapes.sample_scene(rng, part)
    image = shapes.draw_scene(rng, scene, size=size).image
    if kind != "dialogue":
        question, answer = ask(rng, scene, kind)
        return Task(image, prompt(question), answer)
    turns = [ask(rng, scene, turn) for turn in ("count", "colour", "shape")]
    rng.shuffle(turns)
    return Task(image, _dialogue(turns), turns[-1][1])


def _dialogue(turns: list[tuple[str, str]]) -> str:
    """All turns but the last already answered."""
    text = prompt(turns[0][0])
    for (_, answer), (question, _) in itertools.pairwise(turns):
        text += f" {answer}</s>USER: {question} ASSISTANT:"
    return text


def _number_task(digits: int, rng: random.Random, size: tuple[int, int]) -> Task:
    scene = handwriting.sample_scene(rng, digits)
    image = handwriting.draw_scene(rng, scene, "test", size=size).image
    question, answer = ask(rng, scene, "number")
    return Task(image, prompt(question), answer)


def _describe_number_task(rng: random.Random, size: tuple[int, int]) -> Task:
    scene = handwriting.sample_scene(rng)
    image = handwriting.draw_scene(rng, scene, "test", size=size).image
    return Task(image, prompt(ask(rng, scene, "describe")[0]), right_answer(scene, "describe"))


def all_kinds() -> dict[str, Maker]:
    """Row of the table -> how to make one of its tasks."""
    makers: dict[str, Maker] = {}
    for kind in (*SHAPE_KINDS, "dialogue"):
        makers[f"{kind}, new pictures"] = partial(_shape_task, kind, "train")
        makers[f"{kind}, new combinations"] = partial(_shape_task, kind, "unseen")
    for digits in (1, 2, 3):
        name = f"number, {COUNT_WORDS[digits - 1]} digit{'s' * (digits > 1)}"
        makers[name] = partial(_number_task, digits)
    makers["number, described"] = _describe_number_task
    return makers


def ask_transformers(path: str, dtype: str, batch: int = 50) -> Answerer:
    import torch
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    model = LlavaForConditionalGeneration.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    processor = AutoProcessor.from_pretrained(path)

    def answer(tasks: list[Task]) -> list[str]:
        said: list[str] = []
        for start in range(0, len(tasks), batch):
            some = tasks[start : start + batch]
            inputs = processor(
                images=[task.image for task in some],
                text=[task.prompt for task in some],
                return_tensors="pt",
                padding=True,
            ).to(model.dtype)
            with torch.inference_mode():
                ids = model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)
            said += processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return said

    return answer


def ask_corellm(path: str, dtype: str) -> Answerer:
    from corellm import LLM, SamplingParams

    llm = LLM(path, dtype=dtype)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

    def answer(tasks: list[Task]) -> list[str]:
        requests = [{"prompt": task.prompt, "multi_modal_data": {"image": task.image}} for task in tasks]
        return [output.outputs[0].text for output in llm.generate(requests, params)]

    return answer


def measure(answer: Answerer, count: int, seed: int, mistakes: list[str] | None = None) -> dict[str, list[float]]:
    """Row -> share of exact answers for each of SIZES; `count` tasks a cell, the same for the same seed."""
    table: dict[str, list[float]] = {}
    for row, make in all_kinds().items():
        table[row] = []
        for column, sizes in SIZES.items():
            rng = random.Random(f"{seed} {row} {column}")
            tasks = [make(rng, rng.choice(sizes)) for _ in range(count)]
            said = [text.strip() for text in answer(tasks)]
            table[row].append(sum(s == task.answer for s, task in zip(said, tasks, strict=True)) / count)
            if mistakes is not None:
                pairs = zip(said, tasks, strict=True)
                mistakes += [f"{row}: {t.prompt!r} -> {s!r}, not {t.answer!r}" for s, t in pairs if s != t.answer]
    return table


def as_markdown(table: dict[str, list[float]], columns: Collection[str], count: int) -> str:
    lines = [f"| question | {' | '.join(columns)} | all |", "|---|" + "---:|" * (len(columns) + 1)]
    for row, shares in table.items():
        cells = " | ".join(f"{100 * share:.1f}" for share in (*shares, sum(shares) / len(shares)))
        lines.append(f"| {row} | {cells} |")
    total = count * len(columns)
    return "\n".join([*lines, "", f"Exact answers in percent; {count} questions a cell, {total} a row."])


def write_card(card: Path, text: str) -> None:
    """Replaces what is between the two markers."""
    before, rest = card.read_text(encoding="utf-8").split(TABLE_BEGIN)
    after = rest.split(TABLE_END)[1]
    card.write_text(f"{before}{TABLE_BEGIN}\n{text}\n{TABLE_END}{after}", encoding="utf-8")


def evaluate(
    about: str | None,
    checkpoint: Path,
    backends: Mapping[str, Callable[[str, str], Callable[[list[Any]], list[str]]]],
    measure: Callable[[Any, int, int, list[str] | None], dict[str, list[float]]],
    columns: Collection[str],
    count: int,
) -> int:
    """The program around the measurements of one model: arguments, table, model card; 1 if a row is too poor.

    Args:
        about: what `--help` says.
        checkpoint: the default one.
        backends: by name, of a checkpoint and a dtype: what answers tasks; the first is the default.
        measure: of an answerer, questions a cell, seed, and where to put mistakes: `{row: share of each column}`.
        columns: their names.
        count: questions a cell, by default.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=checkpoint)
    parser.add_argument("--backend", choices=tuple(backends), default=next(iter(backends)))
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--count", type=int, default=count, help="questions for each cell of the table")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--write", action="store_true", help="put the table into the checkpoint's README.md")
    parser.add_argument("--mistakes", action="store_true", help="print every wrong answer")
    given = parser.parse_args()
    mistakes: list[str] | None = [] if given.mistakes else None
    answer = backends[given.backend](str(given.checkpoint), given.dtype)
    table = measure(answer, given.count, given.seed, mistakes)
    text = as_markdown(table, columns, given.count)
    print("\n".join([*(mistakes or []), text]))
    if given.write:
        write_card(given.checkpoint / "README.md", text)
    poor = [row for row, shares in table.items() if sum(shares) / len(shares) < REQUIRED]
    if poor:
        print(f"below {REQUIRED:.0%}: {', '.join(poor)}", file=sys.stderr)
    return 1 if poor else 0


if __name__ == "__main__":
    answerers = {"corellm": ask_corellm, "transformers": ask_transformers}
    sys.exit(evaluate(__doc__, CHECKPOINT, answerers, measure, SIZES, count=250))

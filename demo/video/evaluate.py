"""Asks a checkpoint about clips it never met, and says how often its answer is exactly right.

    python -m demo.video.evaluate                           the checkpoint of corellm-qwen-vl, with corellm
    python -m demo.video.evaluate --backend transformers    the same questions, with Hugging Face Transformers
    python -m demo.video.evaluate --write                   and puts the table into the checkpoint's model card

Every clip is an mp4 file, written and read back. Exits with 1 when any kind of question is below 95 %.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from demo.evaluate import evaluate
from demo.video.clips import ClipScene, Part, draw_clip, sample_scene
from demo.video.files import Codec, decode, encode
from demo.video.model import prompt
from demo.video.questions import KINDS, ask

CHECKPOINT = Path(__file__).resolve().parents[2] / "plugins/qwen_vl/src/corellm_qwen_vl/demo_video"
MAX_TOKENS = 16
PARTS: dict[str, Part] = {"new clips": "train", "new combinations": "unseen"}

H264, MPEG4 = Codec("libx264", {"preset": "veryfast"}), Codec("mpeg4", {"qscale": "5"})


@dataclass(frozen=True)
class Format:
    sizes: tuple[tuple[int, int], ...]  # width and height
    rates: tuple[int, ...]  # frames per second
    seconds: tuple[float, float]
    codecs: tuple[Codec, ...]


# Column -> what its clips are like.
FORMATS: dict[str, Format] = {
    "small": Format(((64, 64), (80, 64), (96, 72)), (8, 10, 15), (1, 2), (MPEG4, H264)),
    "square": Format(((128, 128), (240, 240), (480, 480)), (10, 24, 30), (1, 4), (H264, MPEG4)),
    "4:3": Format(((160, 120), (320, 240)), (12, 25), (1, 6), (H264, MPEG4)),
    "16:9": Format(((256, 144), (320, 180), (640, 360)), (24, 30), (1, 4), (H264,)),
    "upright": Format(((120, 160), (180, 320), (240, 360)), (15, 30), (1, 4), (H264, MPEG4)),
}


@dataclass(frozen=True)
class Task:
    clip: bytes  # an mp4 file
    prompt: str
    answer: str


Answerer = Callable[[list[Task]], list[str]]


def _draw(seed: str, part: Part, column: str) -> tuple[ClipScene, bytes]:
    rng, form = random.Random(seed), FORMATS[column]
    scene = sample_scene(rng, part)
    rate = rng.choice(form.rates)
    total = max(8, round(rng.uniform(*form.seconds) * rate))
    clip = draw_clip(rng, scene, [k / (total - 1) for k in range(total)], rng.choice(form.sizes))
    return scene, encode(clip.frames, rate, rng.choice(form.codecs))


def _task(rng: random.Random, scene: ClipScene, clip: bytes, kind: str) -> Task:
    if kind != "dialogue":
        question, answer = ask(rng, scene, kind)
        return Task(clip, prompt(question), answer)
    turns = [ask(rng, scene, turn) for turn in rng.sample(("direction", "count", "colour", "shape"), 3)]
    text = prompt(turns[0][0])
    for (_, answer), (question, _) in pairwise(turns):
        text += f"{answer}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return Task(clip, text, turns[-1][1])


def make_tasks(seed: int, part: Part, column: str, count: int) -> dict[str, list[Task]]:
    """Kind of question -> `count` tasks; one question of each kind about each of `count` clips."""
    seeds = [f"{seed} {part} {column} {k}" for k in range(count)]
    with ProcessPoolExecutor(2) as pool:
        clips = list(pool.map(_draw, seeds, [part] * count, [column] * count, chunksize=16))
    about = list(zip(seeds, clips, strict=True))
    return {
        kind: [_task(random.Random(f"{name} {kind}"), scene, clip, kind) for name, (scene, clip) in about]
        for kind in (*KINDS, "dialogue")
    }


def ask_transformers(path: str, dtype: str, batch: int = 32) -> Answerer:
    """Transformers' model; its video processor needs torchvision, so the clips are prepared by `demo.video.frames`."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

    from demo.video.frames import patches, resize, sampled
    from demo.video.model import MEAN, MERGE, PATCH, STD, VIDEO

    model = Qwen2VLForConditionalGeneration.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    known: dict[bytes, tuple[torch.Tensor, tuple[int, int, int]]] = {}

    def prepare(clip: bytes) -> tuple[torch.Tensor, tuple[int, int, int]]:
        if clip not in known:
            frames = decode(clip)
            small = resize(np.ascontiguousarray(frames[sampled(len(frames))]))
            split = patches(small)  # [pairs, patches of a pair, values of a patch]
            mean, std = (np.repeat(np.array(v), split.shape[2] // 3) for v in (MEAN, STD))
            pixels = torch.from_numpy(((split / 255 - mean) / std).astype(np.float32))
            grid = len(split), small.shape[1] // PATCH, small.shape[2] // PATCH
            known[clip] = pixels.flatten(0, 1), grid
        return known[clip]

    def answer(tasks: list[Task]) -> list[str]:
        said: list[str] = []
        for start in range(0, len(tasks), batch):
            some = tasks[start : start + batch]
            pixels, grids = zip(*(prepare(task.clip) for task in some), strict=True)
            texts = [
                task.prompt.replace("<|video_pad|>", "<|video_pad|>" * (t * h * w // MERGE**2))
                for task, (t, h, w) in zip(some, grids, strict=True)
            ]
            inputs = tokenizer(texts, return_tensors="pt", padding=True)
            with torch.inference_mode():
                ids = model.generate(
                    **inputs,
                    pixel_values_videos=torch.cat(pixels).to(model.dtype),
                    video_grid_thw=torch.tensor(grids),
                    mm_token_type_ids=(inputs["input_ids"] == VIDEO).int() * 2,
                    max_new_tokens=MAX_TOKENS,
                    do_sample=False,
                )
            said += tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return said

    return answer


def ask_corellm(path: str, dtype: str) -> Answerer:
    from corellm import LLM, SamplingParams

    llm = LLM(path, dtype=dtype)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

    def answer(tasks: list[Task]) -> list[str]:
        requests = [{"prompt": task.prompt, "multi_modal_data": {"video": task.clip}} for task in tasks]
        return [output.outputs[0].text for output in llm.generate(requests, params, use_tqdm=False)]

    return answer


def measure(answer: Answerer, count: int, seed: int, mistakes: list[str] | None = None) -> dict[str, list[float]]:
    """Row -> share of exact answers for each of FORMATS; `count` tasks a cell, the same for the same seed."""
    table: dict[str, list[float]] = {f"{kind}, {name}": [] for kind in (*KINDS, "dialogue") for name in PARTS}
    for column in FORMATS:
        for name, part in PARTS.items():
            for kind, tasks in make_tasks(seed, part, column, count).items():
                said = [text.strip() for text in answer(tasks)]
                table[f"{kind}, {name}"].append(sum(s == t.answer for s, t in zip(said, tasks, strict=True)) / count)
                if mistakes is not None:
                    wrong = [(s, t) for s, t in zip(said, tasks, strict=True) if s != t.answer]
                    mistakes += [f"{kind}, {name}, {column}: {t.prompt!r} -> {s!r}, not {t.answer!r}" for s, t in wrong]
    return table


if __name__ == "__main__":
    answerers = {"corellm": ask_corellm, "transformers": ask_transformers}
    sys.exit(evaluate(__doc__, CHECKPOINT, answerers, measure, FORMATS, count=200))

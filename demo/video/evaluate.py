"""Measure how often a checkpoint answers exactly right about videos that training did not draw.

    python -m demo.video.evaluate                           the checkpoint of corellm-qwen-vl, with corellm
    python -m demo.video.evaluate --backend transformers    the same questions, with Hugging Face Transformers
    python -m demo.video.evaluate --write                   also put the table into the checkpoint's model card

Every video is encoded as an mp4 file. Exits with 1 when any kind of question is below 95 %.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from demo.evaluation import MAX_TOKENS, Generate, Task, accuracy, run
from demo.video.files import Codec, decode, encode
from demo.video.model import prompt
from demo.video.moving_shapes import Part, VideoScene, draw_video, sample_scene
from demo.video.questions import KINDS, ask

CHECKPOINT = Path(__file__).resolve().parents[2] / "plugins/qwen_vl/src/corellm_qwen_vl/demo_video"
PARTS: dict[str, Part] = {"new videos": "train", "new combinations": "unseen"}

H264, MPEG4 = Codec("libx264", {"preset": "veryfast"}), Codec("mpeg4", {"qscale": "5"})


@dataclass(frozen=True)
class Format:
    sizes: tuple[tuple[int, int], ...]  # width and height
    rates: tuple[int, ...]  # frames per second
    seconds: tuple[float, float]
    codecs: tuple[Codec, ...]


# Column -> the formats of its videos.
FORMATS: dict[str, Format] = {
    "small": Format(((64, 64), (80, 64), (96, 72)), (8, 10, 15), (1, 2), (MPEG4, H264)),
    "square": Format(((128, 128), (240, 240), (480, 480)), (10, 24, 30), (1, 4), (H264, MPEG4)),
    "4:3": Format(((160, 120), (320, 240)), (12, 25), (1, 6), (H264, MPEG4)),
    "16:9": Format(((256, 144), (320, 180), (640, 360)), (24, 30), (1, 4), (H264,)),
    "upright": Format(((120, 160), (180, 320), (240, 360)), (15, 30), (1, 4), (H264, MPEG4)),
}


def _draw(seed: str, part: Part, column: str) -> tuple[VideoScene, bytes]:
    rng, format_ = random.Random(seed), FORMATS[column]
    scene = sample_scene(rng, part)
    rate = rng.choice(format_.rates)
    total = max(8, round(rng.uniform(*format_.seconds) * rate))
    video = draw_video(rng, scene, [k / (total - 1) for k in range(total)], rng.choice(format_.sizes))
    return scene, encode(video.frames, rate, rng.choice(format_.codecs))


def _task(rng: random.Random, scene: VideoScene, video: bytes, kind: str) -> Task:
    if kind != "dialogue":
        question, answer = ask(rng, scene, kind)
        return Task(video, prompt(question), answer)
    turns = [ask(rng, scene, turn) for turn in rng.sample(("direction", "count", "colour", "shape"), 3)]
    text = prompt(turns[0][0])
    for (_, answer), (question, _) in pairwise(turns):
        text += f"{answer}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return Task(video, text, turns[-1][1])


def make_tasks(seed: int, part: Part, column: str, count: int) -> dict[str, list[Task]]:
    """Return `count` tasks for each kind of question: one of each kind about each of `count` videos."""
    seeds = [f"{seed} {part} {column} {k}" for k in range(count)]
    with ProcessPoolExecutor(2) as pool:
        drawn = list(pool.map(_draw, seeds, [part] * count, [column] * count, chunksize=16))
    videos = list(zip(seeds, drawn, strict=True))
    return {
        kind: [_task(random.Random(f"{name} {kind}"), scene, video, kind) for name, (scene, video) in videos]
        for kind in (*KINDS, "dialogue")
    }


def load_transformers(path: str, dtype: str, batch_size: int = 32) -> Generate:
    """Return a function that answers tasks with Transformers' model.

    Its video processor needs torchvision, so `demo.video.frames` prepares the videos.
    """
    import numpy as np
    import torch
    from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

    from demo.video.frames import patches, resize, sampled
    from demo.video.model import MEAN, MERGE, PATCH, STD, VIDEO

    model = Qwen2VLForConditionalGeneration.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)

    @cache
    def prepare(video: bytes) -> tuple[torch.Tensor, tuple[int, int, int]]:
        frames = decode(video)
        resized = resize(np.ascontiguousarray(frames[sampled(len(frames))]))
        split = patches(resized)  # [pairs, patches of a pair, values of a patch]
        mean, std = (np.repeat(np.array(v), split.shape[2] // 3) for v in (MEAN, STD))
        pixels = torch.from_numpy(((split / 255 - mean) / std).astype(np.float32))
        return pixels.flatten(0, 1), (len(split), resized.shape[1] // PATCH, resized.shape[2] // PATCH)

    def generate(tasks: list[Task]) -> list[str]:
        outputs: list[str] = []
        for start in range(0, len(tasks), batch_size):
            batch = tasks[start : start + batch_size]
            pixels, grids = zip(*(prepare(task.media) for task in batch), strict=True)
            texts = [
                task.prompt.replace("<|video_pad|>", "<|video_pad|>" * (t * h * w // MERGE**2))
                for task, (t, h, w) in zip(batch, grids, strict=True)
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
            outputs += tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return outputs

    return generate


def measure(generate: Generate, count: int, seed: int, mistakes: list[str]) -> dict[str, list[float]]:
    """Return the share of exact answers per row and column; the same seed gives the same `count` tasks a cell."""
    table: dict[str, list[float]] = {f"{kind}, {name}": [] for kind in (*KINDS, "dialogue") for name in PARTS}
    for column in FORMATS:
        for name, part in PARTS.items():
            for kind, tasks in make_tasks(seed, part, column, count).items():
                row = f"{kind}, {name}"
                table[row].append(accuracy(generate, tasks, f"{row}, {column}", mistakes))
    return table


if __name__ == "__main__":
    sys.exit(run(__doc__, CHECKPOINT, "video", load_transformers, measure, FORMATS, count=200))

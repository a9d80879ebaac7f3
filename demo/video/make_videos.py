"""Draw the sample videos of the demo, with questions and their right answers.

    python -m demo.video.make_videos

Writes `demo/videos/*.mp4` and `demo/videos/questions.json`, {file name: {question: right answer}}. Training drew
none of them: they show held-out combinations.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from demo.video.evaluate import H264, MPEG4
from demo.video.files import Codec, encode
from demo.video.moving_shapes import VideoScene, draw_video
from demo.video.questions import KINDS, right_answer

FOLDER = Path(__file__).resolve().parents[1] / "videos"


@dataclass(frozen=True)
class SampleVideo:
    seed: int
    scene: VideoScene
    size: tuple[int, int]  # width and height
    rate: int  # frames per second
    seconds: float
    codec: Codec
    questions: dict[str, str]  # question -> its kind, or the answer where it is yes or no


SAMPLES = {
    "square.mp4": SampleVideo(
        1,
        VideoScene("square", "blue", 1, "left", "white"),
        (320, 180),
        24,
        2.0,
        H264,
        {"Which way does it move?": "direction", "What shape is it?": "shape", "Is it a red square?": "no"},
    ),
    "triangles.mp4": SampleVideo(
        2,
        VideoScene("triangle", "orange", 3, "up", "black"),
        (240, 240),
        15,
        3.0,
        H264,
        {"How many shapes are there?": "count", "Describe the clip.": "describe", "Are they moving down?": "no"},
    ),
    "circles.mp4": SampleVideo(
        12,  # with this seed the shapes appear one after the other
        VideoScene("circle", "black", 4, "down", "yellow"),
        (320, 240),
        25,
        2.0,
        MPEG4,
        {"How many appear?": "count", "Which way do they move?": "direction", "What happens?": "describe"},
    ),
    "still.mp4": SampleVideo(
        4,
        VideoScene("square", "red", 2, "nowhere", "green"),
        (180, 320),
        10,
        1.5,
        H264,
        {
            "Does it move?": "no",
            "Which way do the squares move?": "direction",
            "What color is the background?": "background",
        },
    ),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    answers: dict[str, dict[str, str]] = {}
    for name, sample in SAMPLES.items():
        assert sample.scene.unseen, f"{name}: training draws {sample.scene}"
        total = round(sample.rate * sample.seconds)
        times = [k / (total - 1) for k in range(total)]
        video = draw_video(random.Random(sample.seed), sample.scene, times, sample.size)
        (FOLDER / name).write_bytes(encode(video.frames, sample.rate, sample.codec))
        answers[name] = {
            question: right_answer(sample.scene, kind) if kind in KINDS else kind
            for question, kind in sample.questions.items()
        }
    (FOLDER / "questions.json").write_text(json.dumps(answers, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

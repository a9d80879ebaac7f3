"""Draw the sample images of the demo, with questions and their right answers.

    python -m demo.make_images

Writes `demo/images/*.png` and `demo/images/questions.json`, {file name: {question: right answer}}. Training drew
none of them: the shapes are held-out combinations, the digits test images.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from demo import handwriting, shapes
from demo.handwriting import NumberScene
from demo.questions import Scene, right_answer
from demo.shapes import ShapeScene

FOLDER = Path(__file__).resolve().parent / "images"

# File name -> seed, scene, width and height, and each question with its kind.
SAMPLES: dict[str, tuple[int, Scene, tuple[int, int], dict[str, str]]] = {
    "star.png": (
        1,
        ShapeScene("star", "red", 1, "white", place=(0, 2)),
        (240, 240),
        {
            "What shape is in the picture?": "shape",
            "What colour is it?": "colour",
            "Where is the star?": "where",
        },
    ),
    "circles.png": (
        3,
        ShapeScene("circle", "orange", 4, "black"),
        (320, 240),
        {
            "How many shapes are there?": "count",
            "What color is the background?": "background",
            "Describe the picture.": "describe",
        },
    ),
    "407.png": (
        2,
        NumberScene("407", "white", "blue"),
        (320, 160),
        {"What number is written here?": "number", "Describe the image.": "describe"},
    ),
    "29.png": (
        0,
        NumberScene("29", "green", "white"),
        (200, 200),
        {"Which number is this?": "number", "What colour is the background?": "background"},
    ),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    answers: dict[str, dict[str, str]] = {}
    for name, (seed, scene, size, kinds) in SAMPLES.items():
        rng = random.Random(seed)
        if isinstance(scene, NumberScene):
            drawn = handwriting.draw_scene(rng, scene, "test", size=size)
        else:
            assert scene.unseen, f"{name}: training draws {scene}"
            drawn = shapes.draw_scene(rng, scene, size=size)
        drawn.image.save(FOLDER / name, optimize=True)
        answers[name] = {question: right_answer(scene, kind) for question, kind in kinds.items()}
    (FOLDER / "questions.json").write_text(json.dumps(answers, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Draw the sample images of the demo, with questions and their right answers.

    python -m demo.make_images

Writes `demo/images/*.png` and `demo/images/questions.json`, {file name: {question: right answer}}; into
`demo/shape_images/` an image of each shape and their names, and into `docs/img/similarity.png` how alike `demo` finds
them. Training drew none of the images: the shapes are held-out combinations, the digits test images.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from corellm.cli import main as corellm
from demo import handwriting, shapes
from demo.handwriting import NumberScene
from demo.questions import Scene, right_answer
from demo.shapes import ShapeScene

FOLDER = Path(__file__).resolve().parent / "images"
SHAPE_FOLDER = FOLDER.with_name("shape_images")
DRAWING = FOLDER.parents[1] / "docs" / "img" / "similarity.png"

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

# Shape -> its colour and the background's.
COLOURED = {
    "circle": ("purple", "orange"),
    "cross": ("green", "red"),
    "square": ("green", "yellow"),
    "star": ("white", "blue"),
    "triangle": ("red", "white"),
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
    draw_shapes()
    folder, captions = str(SHAPE_FOLDER), str(SHAPE_FOLDER / "captions.txt")
    compared = ["--images", folder, "--texts", captions, "--instruction", "What shape is it?"]
    corellm(["embed", "demo", *compared, "--plot", str(DRAWING)])


def draw_shapes() -> None:
    """Draw an image of each shape, and write their names."""
    SHAPE_FOLDER.mkdir(exist_ok=True)
    for seed, (shape, (colour, background)) in enumerate(COLOURED.items()):
        scene = ShapeScene(shape, colour, 1, background)
        assert scene.unseen, f"training draws {scene}"
        drawn = shapes.draw_scene(random.Random(seed), scene, size=(160, 160))
        drawn.image.save(SHAPE_FOLDER / f"{shape}.png", optimize=True)
    (SHAPE_FOLDER / "captions.txt").write_text("\n".join(COLOURED) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

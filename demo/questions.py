"""Questions about an image: their kinds, their phrasings and the right answers.

Knows the scenes, not how they are drawn, and nothing of tokens.
"""

from __future__ import annotations

import random

from demo.canvas import COLOURS
from demo.handwriting import NumberScene
from demo.shapes import PLACES, SHAPES, ShapeScene

Scene = ShapeScene | NumberScene

COUNT_WORDS = ("one", "two", "three", "four", "five")

# "{p}" is "picture" or "image", "{c}" is "colour" or "color", "{s}" and "{k}" are a shape and a colour.
PHRASINGS: dict[str, tuple[str, ...]] = {
    "shape": (
        "What shape is in the {p}?",
        "What shape is this?",
        "Which shape is it?",
        "Which shape is shown?",
        "Which shape is in the {p}?",
        "What shape is shown in the {p}?",
        "What shape do you see?",
        "What shape?",
        "What kind of shape is it?",
        "Name the shape.",
    ),
    "colour": (
        "What {c} is it?",
        "What {c} is the shape?",
        "Which {c} is it?",
        "Which {c} is the shape?",
        "What is the {c} of the shape?",
        "What {c} are the shapes?",
        "What {c} are they?",
        "What {c} is the {s}?",
        "What {c}?",
        "Name the {c}.",
    ),
    "count": (
        "How many shapes are there?",
        "How many shapes are in the {p}?",
        "How many shapes do you see?",
        "How many shapes can you see?",
        "How many are there?",
        "How many {s}s are there?",
        "How many?",
        "Count the shapes.",
        "What is the number of shapes?",
    ),
    "where": (
        "Where is the {s}?",
        "Where is the shape?",
        "Where is it?",
        "Where in the {p} is the {s}?",
        "Where in the {p} is the shape?",
        "Where in the {p} is it?",
        "In which part of the {p} is the {s}?",
        "What is the position of the {s}?",
    ),
    "background": (
        "What {c} is the background?",
        "Which {c} is the background?",
        "What is the {c} of the background?",
        "What is the background {c}?",
        "What {c} is behind it?",
        "What {c} is the paper?",
        "Background {c}?",
    ),
    "describe": (
        "Describe the {p}.",
        "Describe this {p}.",
        "What is in the {p}?",
        "What is in this {p}?",
        "What do you see?",
        "What can you see?",
        "What does the {p} show?",
        "What is this?",
        "Caption the {p}.",
    ),
    "number": (
        "What number is written here?",
        "What number is this?",
        "What number is it?",
        "Which number is written here?",
        "Which number is this?",
        "What number is in the {p}?",
        "What number do you see?",
        "What is the number?",
        "What number?",
        "Read the number.",
        "What is written here?",
    ),
    "yes or no": (
        "Is there a {s}?",
        "Is there a {s} in the {p}?",
        "Is it a {s}?",
        "Do you see a {s}?",
        "Is it {k}?",
        "Is the shape {k}?",
    ),
}

SHAPE_KINDS = ("shape", "colour", "count", "where", "background", "describe", "yes or no")
NUMBER_KINDS = ("number", "background", "describe")
NO_SHAPE, NO_NUMBER, NO_IMAGE = "no shape", "no number", "no picture"


def kinds_of(scene: Scene) -> tuple[str, ...]:
    if isinstance(scene, NumberScene):
        return NUMBER_KINDS
    return SHAPE_KINDS if scene.place else tuple(kind for kind in SHAPE_KINDS if kind != "where")


def _plural(shape: str, count: int) -> str:
    return shape if count == 1 else shape + ("es" if shape == "cross" else "s")


def right_answer(scene: Scene, kind: str) -> str:
    """Return the answer to any kind but yes or no, whose answer depends on the shape or colour in the question."""
    if kind == "background":
        return scene.background
    if isinstance(scene, NumberScene):
        return {"number": scene.number, "describe": f"the number {scene.number}"}.get(kind, NO_SHAPE)
    if kind == "where" and scene.place:
        return PLACES[scene.place[0]][scene.place[1]]
    count = COUNT_WORDS[scene.count - 1]
    article = "an" if scene.background == "orange" else "a"
    described = f"{count} {scene.colour} {_plural(scene.shape, scene.count)} on {article} {scene.background} background"
    answers = {"shape": scene.shape, "colour": scene.colour, "count": count, "describe": described}
    return answers.get(kind, NO_NUMBER)


def _phrase(rng: random.Random, phrasing: str, shape: str = "", colour: str = "") -> str:
    """Return a phrasing filled in, British or American; one in four each without capital or final punctuation."""
    text = phrasing.replace("{p}", rng.choice(("picture", "image"))).replace("{c}", rng.choice(("colour", "color")))
    text = text.replace("{s}s", _plural(shape, 2)).replace("{s}", shape).replace("{k}", colour)
    if rng.random() < 0.25:
        text = text[:-1]
    if rng.random() < 0.25:
        text = text[0].lower() + text[1:]
    return text


def ask(rng: random.Random, scene: Scene, kind: str) -> tuple[str, str]:
    """Return a question of this kind about the scene, and the right answer."""
    phrasing = rng.choice(PHRASINGS[kind])
    if isinstance(scene, NumberScene):
        return _phrase(rng, phrasing, rng.choice(SHAPES), scene.ink), right_answer(scene, kind)
    if kind != "yes or no":
        return _phrase(rng, phrasing, scene.shape, scene.colour), right_answer(scene, kind)
    truth = rng.random() < 0.5
    shape = scene.shape if truth else rng.choice([s for s in SHAPES if s != scene.shape])
    colour = scene.colour if truth else rng.choice([c for c in COLOURS if c != scene.colour])
    return _phrase(rng, phrasing, shape, colour), "yes" if truth else "no"


_TRAINING_WEIGHTS = {"shape": 3, "colour": 2, "count": 4, "where": 3, "background": 2, "describe": 4, "yes or no": 5}


def ask_anything(rng: random.Random, scene: Scene) -> tuple[str, str]:
    """Return a question of any kind and its answer, for training; a few ask for what the image does not show."""
    if isinstance(scene, NumberScene):
        kind = rng.choices(("number", "describe", "background", "shape"), (8, 2, 2, 0.5))[0]
    elif rng.random() < 0.03:
        kind = "number"
    else:
        kinds = kinds_of(scene)
        kind = rng.choices(kinds, [_TRAINING_WEIGHTS[k] for k in kinds])[0]
    return ask(rng, scene, kind)

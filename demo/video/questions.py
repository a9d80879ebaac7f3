"""Questions about a video: their kinds, their phrasings and the right answers.

Knows the scenes, not how they are drawn, and nothing of tokens.
"""

from __future__ import annotations

import random

from demo.video.moving_shapes import INKS, MOVES, SHAPES, VideoScene

COUNT_WORDS = ("one", "two", "three", "four")

# "{v}" is "video" or "clip", "{c}" is "colour" or "color"; "{s}", "{k}" and "{m}" are a shape, a colour and a
# movement, "{s}s" the shape's plural.
PHRASINGS: dict[str, tuple[str, ...]] = {
    "direction": (
        "Which way does it move?",
        "Which way do they move?",
        "Which way is it moving?",
        "Which way are they moving?",
        "Which way does it go?",
        "Which way do they go?",
        "Which way does the {s} move?",
        "Which way do the {s}s move?",
        "Which way is the {s} going?",
        "Which way are the shapes moving?",
        "In which direction does it move?",
        "In which direction do they move?",
        "What direction is it moving in?",
        "In what direction does the {s} move?",
        "Where does it move?",
        "Where is it going?",
        "Where do the shapes go?",
        "Which direction?",
        "Which way?",
    ),
    "count": (
        "How many shapes are there?",
        "How many shapes appear?",
        "How many appear?",
        "How many shapes are in the {v}?",
        "How many shapes appear in the {v}?",
        "How many shapes do you see?",
        "How many shapes can you see?",
        "How many are there?",
        "How many {s}s are there?",
        "How many {s}s appear?",
        "How many {s}s do you see?",
        "How many?",
        "Count the shapes.",
        "What is the number of shapes?",
    ),
    "shape": (
        "What shape is it?",
        "What shape is this?",
        "What shape are they?",
        "Which shape is it?",
        "What shape is in the {v}?",
        "Which shape is in the {v}?",
        "What shape do you see?",
        "What shape is shown?",
        "What kind of shape is it?",
        "What shape?",
        "Name the shape.",
    ),
    "colour": (
        "What {c} is it?",
        "What {c} are they?",
        "What {c} is the shape?",
        "What {c} are the shapes?",
        "Which {c} is it?",
        "What is the {c} of the shape?",
        "What {c} is the {s}?",
        "What {c} are the {s}s?",
        "What {c}?",
        "Name the {c}.",
    ),
    "background": (
        "What {c} is the background?",
        "Which {c} is the background?",
        "What is the {c} of the background?",
        "What is the background {c}?",
        "Background {c}?",
    ),
    "describe": (
        "Describe the {v}.",
        "Describe this {v}.",
        "What happens?",
        "What happens in the {v}?",
        "What is happening?",
        "What is in the {v}?",
        "What do you see?",
        "What can you see?",
        "What does the {v} show?",
        "Caption the {v}.",
    ),
    "movement, yes or no": (
        "Does it move {m}?",
        "Do they move {m}?",
        "Is it moving {m}?",
        "Are they moving {m}?",
        "Does the {s} move {m}?",
        "Does it move?",
        "Is it moving?",
        "Does it stand still?",
    ),
    "looks, yes or no": (
        "Is it a {k} {s}?",
        "Is it {k}?",
        "Are they {k}?",
        "Is there a {s}?",
        "Is it a {s}?",
    ),
}

KINDS = tuple(PHRASINGS)
NO_VIDEO = "no video"


def right_answer(scene: VideoScene, kind: str) -> str:
    """Return the answer to any kind but those of yes or no, where it depends on what the question names."""
    count = COUNT_WORDS[scene.count - 1]
    things = scene.shape + "s" * (scene.count > 1)
    doing = "standing still" if scene.move == "nowhere" else f"moving {scene.move}"
    return {
        "direction": scene.move,
        "count": count,
        "shape": scene.shape,
        "colour": scene.colour,
        "background": scene.background,
        "describe": f"{count} {scene.colour} {things} {doing}",
    }[kind]


def _phrase(rng: random.Random, phrasing: str, shape: str, colour: str, move: str) -> str:
    """Return a phrasing filled in, British or American; one in five each without capital or final punctuation."""
    text = phrasing.replace("{v}", rng.choice(("video", "clip"))).replace("{c}", rng.choice(("colour", "color")))
    text = text.replace("{s}", shape).replace("{k}", colour).replace("{m}", move)
    text = text.replace(" a orange", " an orange")
    if rng.random() < 0.2:
        text = text[:-1]
    if rng.random() < 0.2:
        text = text[0].lower() + text[1:]
    return text


def _other(rng: random.Random, names: tuple[str, ...], name: str) -> str:
    return rng.choice([other for other in names if other != name])


def ask(rng: random.Random, scene: VideoScene, kind: str) -> tuple[str, str]:
    """Return a question of this kind about the scene, and the right answer."""
    phrasing = rng.choice(PHRASINGS[kind])
    if not kind.endswith("yes or no"):
        return _phrase(rng, phrasing, scene.shape, scene.colour, scene.move), right_answer(scene, kind)
    shape, colour, move = scene.shape, scene.colour, scene.move
    still = move == "nowhere"
    if "{m}" in phrasing:
        directions = tuple(name for name in MOVES if name != "nowhere")
        truth = not still and rng.random() < 0.5
        move = move if truth else _other(rng, directions, move)
    elif kind == "looks, yes or no":
        truth = rng.random() < 0.5
        if not truth:  # the question names a wrong colour or a wrong shape
            wrong_colour = "{k}" in phrasing and ("{s}" not in phrasing or rng.random() < 0.5)
            colour = _other(rng, INKS, colour) if wrong_colour else colour
            shape = shape if wrong_colour else _other(rng, SHAPES, shape)
    else:
        truth = still == (phrasing == "Does it stand still?")
    return _phrase(rng, phrasing, shape, colour, move), "yes" if truth else "no"


_TRAINING_WEIGHTS = {
    "direction": 2,
    "count": 5,
    "shape": 3,
    "colour": 1.5,
    "background": 1,
    "describe": 4,
    "movement, yes or no": 3,
    "looks, yes or no": 9,  # the comparison of a shape with its name is learnt last
}


def ask_anything(rng: random.Random, scene: VideoScene) -> tuple[str, str]:
    """Return a question of any kind and its answer, with the shares of training."""
    return ask(rng, scene, rng.choices(KINDS, [_TRAINING_WEIGHTS[kind] for kind in KINDS])[0])

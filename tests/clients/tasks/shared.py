"""What the tasks have in common: the form of an output, and how they are reported. Needs pydantic and nothing else.

python NAME.py URL MODEL IMAGE

A model of random weights does them: what comes is of its form, and says nothing.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

url, model, image_path = sys.argv[1:4]
IMAGE = "data:image/png;base64," + base64.b64encode(Path(image_path).read_bytes()).decode()
SAMPLING = {"temperature": 1.0, "max_tokens": 4000}


class Part(BaseModel):
    """A part of a shape."""

    length: int = Field(ge=1, le=99)
    label: str | None = Field(max_length=6)


class Shape(BaseModel):
    """A shape, with an object, a list and an optional value within."""

    name: Literal["circle", "square", "star"]
    sides: int = Field(ge=0, le=12)
    parts: list[Part] = Field(max_length=2)


class Paint(BaseModel):
    """Paint something; an action that a model may take."""

    colour: Literal["red", "blue"]
    times: int = Field(ge=1, le=9)


def report(*tasks: Callable[[], None]) -> None:
    """Do each task; print their names as JSON, in the last line."""
    for task in tasks:
        task()
    print(json.dumps([task.__name__ for task in tasks]))

"""instructor: response models in its modes, streamed as a growing one and as several."""

from typing import Any

import instructor
import openai
from shared import SAMPLING, Paint, Shape, model, report, url

MODES = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)
ASKED: Any = {"model": model, "messages": [{"role": "user", "content": "Describe a shape."}], **SAMPLING}


def client(mode: Any) -> Any:
    """A client of a mode."""
    plain = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    return instructor.from_openai(plain, mode=mode)


def response_models() -> None:
    """Two types, each in all modes."""
    for mode in MODES:
        for kind in (Shape, Paint):
            made = client(mode).chat.completions.create(**ASKED, response_model=kind, max_retries=0)
            assert isinstance(made, kind), mode


def partial() -> None:
    """The last of a stream is whole."""
    for mode in MODES:
        *_, last = client(mode).chat.completions.create_partial(**ASKED, response_model=Shape)
        Shape.model_validate(last.model_dump()), mode


report(response_models, partial)

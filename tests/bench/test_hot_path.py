"""The list of functions that a reader passes is what a step runs: traced on a tiny LLaVA."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from bench import hot_path
from corellm import LLM, SamplingParams
from tests.fixtures import random_image

ALL_LISTED = {function for step in ("prompt", "image", "decode") for function in hot_path.path_of(step)}


@pytest.fixture(scope="module")
def engine(tiny_llava: Path) -> Iterator[Any]:
    options = {"attention_backend": "cpu", "fuse_layers": False}  # what the core has for CPUs
    with LLM(str(tiny_llava), dtype="float32", max_model_len=256, num_kv_blocks=64, **options) as llm:
        llm.generate("Once before, so that nothing is imported in a step", SamplingParams(max_tokens=2))
        yield llm.engine


def executed(engine: Any) -> set[tuple[str, str]]:
    """The core's functions that the next step runs until attention of the first layer has returned."""
    ran: set[tuple[str, str]] = set()
    is_over = False

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal is_over
        file, name = place_of(frame.f_code)
        if event == "call" and not is_over and name:
            ran.add((file, name))
        is_over = is_over or (event == "return" and name == "CpuAttention.forward")

    sys.setprofile(note)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return ran


def place_of(code: CodeType) -> tuple[str, str]:
    """File and function; an empty name for code of others, and for comprehensions, which are part of a function."""
    path = Path(code.co_filename)
    if not path.is_relative_to(hot_path.CORE) or code.co_name.startswith("<"):
        return "", ""
    return path.relative_to(hot_path.CORE).as_posix(), code.co_qualname.replace(".<locals>", "")


def test_what_steps_run_is_listed(engine: Any) -> None:
    """Prompts with an image and without, and decodes: every function of the path, and no others but those aside."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    image = {
        "prompt": "USER: <image>\nWhat is this? ASSISTANT:",
        "multi_modal_data": {"image": random_image(40, 30, 1)},
    }
    found: dict[str, set[tuple[str, str]]] = {}
    for step, prompt in (("prompt", "Hello there"), ("image", image)):
        engine.add_request(step, prompt, params)
        found[step], found["decode"] = executed(engine), executed(engine)
        while engine.has_unfinished_requests():
            engine.step()
    for step, ran in found.items():
        assert set(hot_path.path_of(step)) == ran - set(hot_path.asides()), step
    assert set(hot_path.asides()) <= set().union(*found.values())


def test_a_reader_passes_few_lines() -> None:
    """A prompt with an image, the longest way, takes less than 530."""
    assert sum(hot_path.lines(*function) for function in hot_path.path_of("image")) < 530
    assert not ALL_LISTED & set(hot_path.asides())


def test_a_function_that_is_no_more_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    hot_path.print_hot_path()
    assert "LLMEngine.step" in capsys.readouterr().out
    with pytest.raises(KeyError, match="renamed"):
        hot_path.lines("scheduling/scheduler.py", "Scheduler.renamed")

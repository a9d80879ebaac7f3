"""A request's error names its stage and holds no tensors."""

from __future__ import annotations

import gc
import logging
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from corellm import LLM
from corellm.errors import CorellmError, EncoderError, PromptError, RequestFailedError
from corellm.system.failures import failure_of
from tests.fixtures import random_image


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Pytest keeps what is logged, with its frames."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def fail(kind: type[Exception]) -> None:
    tensor = torch.ones(3)
    fail.held = weakref.ref(tensor)  # type: ignore[attr-defined]
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise kind("no") from error


def caught(kind: type[Exception]) -> CorellmError:
    try:
        fail(kind)
    except Exception as error:
        return failure_of("the stage", error, EncoderError)
    raise AssertionError


@pytest.mark.parametrize("kind", [ValueError, PromptError])
def test_no_frame_is_kept(kind: type[Exception]) -> None:
    failure = caught(kind)
    assert fail.held() is None  # type: ignore[attr-defined]
    assert failure.__traceback__ is None


def test_words_stay() -> None:
    """Where it was raised, also in a traceback that is printed later."""
    failure = caught(ValueError)
    assert isinstance(failure, EncoderError)
    assert "ValueError: no (system/test_failures.py:" in str(failure)
    assert "in fail\n" in "".join(traceback.format_exception(failure))
    assert type(caught(PromptError)) is PromptError


def outputs_of_broken(stage: str, refs: list[weakref.ref[Any]]) -> list[Any]:
    """Outputs of two prompts with images, on an engine that is closed again; what it held is noted in `refs`."""
    prompts = [{"prompt": "<image> a", "multi_modal_data": {"image": random_image(40, 30, seed)}} for seed in (1, 2)]
    with LLM("demo", device="cpu") as llm:  # a GPU replays encoders that it captured
        runner = llm.engine.runner
        refs.append(weakref.ref(runner.model))
        forward, output = runner.forward, runner.encoders.output

        def noted(feature: Any) -> Any:
            rows = output(feature)
            refs.append(weakref.ref(rows))
            return rows

        def broken(*args: Any, **kwargs: Any) -> Any:
            if stage == "forward" and not args[1][0].items:
                return forward(*args, **kwargs)  # the engine's own question whether all is well
            raise RuntimeError("broken")

        runner.encoders.output = noted
        if stage == "forward":
            runner.forward = broken
        else:
            runner.encoders._encode = broken
        return llm.generate(prompts, on_error="return")


@pytest.mark.parametrize(("stage", "kind", "held"), [("forward", RequestFailedError, 3), ("encoder", EncoderError, 1)])
def test_a_kept_error_keeps_no_model(stage: str, kind: type[CorellmError], held: int) -> None:
    """Nor embeddings: callers may keep outputs for long."""
    refs: list[weakref.ref[Any]] = []
    outputs = outputs_of_broken(stage, refs)
    assert [type(output.error) for output in outputs] == [kind] * 2
    gc.collect()
    assert len(refs) == held
    assert [ref() for ref in refs] == [None] * held

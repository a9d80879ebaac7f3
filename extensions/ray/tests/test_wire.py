"""Requests on their way to a replica: what comes out is what went in, and nothing of it is unpickled."""

from __future__ import annotations

import pickletools
from pathlib import Path

import msgspec
import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.errors import EngineLostError
from corellm.serving import ProcessedPrompt
from corellm_ray.wire import from_wire, to_wire
from extensions.ray.tests.conftest import ENGINE
from tests.fixtures import random_image

DECODE = msgspec.msgpack.Decoder(SamplingParams).decode


@pytest.fixture(scope="module")
def prompts(tiny_llava: Path) -> list[ProcessedPrompt]:
    """One without items, one with two."""
    with LLM(str(tiny_llava), **ENGINE) as llm:
        process = llm.engine.input_processor.process
        images = [random_image(40, 30, seed) for seed in range(2)]
        with_images = {"prompt": "<image><image> what?", "multi_modal_data": {"image": images}, "cache_salt": "a"}
        return [process("hello"), process(with_images)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_request_is_the_same_on_the_other_side(prompts: list[ProcessedPrompt], number: int) -> None:
    prompt, params = prompts[number], SamplingParams(temperature=0.5, seed=3, stop=["x"])
    data, tensors = to_wire(prompt, params)
    assert bool(tensors) == bool(number)
    found, found_params = from_wire(data, tensors, DECODE)
    assert found_params == params
    assert (found.token_ids, found.cache_salt, found.text) == (prompt.token_ids, prompt.cache_salt, None)
    assert len(found.features) == 2 * number
    for ours, theirs in zip(found.features, prompt.features, strict=True):
        assert (ours.identifier, ours.placeholder) == (theirs.identifier, theirs.placeholder)
        for name, elem in theirs.data.items():
            torch.testing.assert_close(ours.data[name].data, elem.data, rtol=0, atol=0)
    with pytest.raises((ValueError, NotImplementedError)):
        list(pickletools.genops(data))


def test_what_is_damaged_is_refused(prompts: list[ProcessedPrompt]) -> None:
    """By types; an item without its tensors, too."""
    data, tensors = to_wire(prompts[1], SamplingParams())
    for damaged in (data[:-1], b"\x00" + data, b"", data.replace(b"float32", b"float99")):
        with pytest.raises(EngineLostError, match="cannot be read; send the request again"):
            from_wire(damaged, tensors, DECODE)
    with pytest.raises(EngineLostError, match="cannot be read"):
        from_wire(data, tensors[:100], DECODE)
    with pytest.raises(Exception, match="tensors of the request's items did not arrive"):
        from_wire(data, b"", DECODE)

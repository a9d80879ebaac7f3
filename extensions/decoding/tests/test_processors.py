"""Logits processors: transformers' results with transformers' processors, one's own in any batch, and failing alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.generation.logits_process import (
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from corellm import LLM, AsyncLLM, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm.errors import InvalidParameterError, RequestFailedError
from corellm.plugin.extensions import load_extensions
from corellm.sampling.extensions import NO_EXTENSIONS, SamplingExtensions
from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.batch import NewSequence
from corellm_decoding import BatchedLogitsProcessor, SequenceTokens
from corellm_decoding.processing import Processing
from corellm_testing.together import generate_together
from extensions.decoding.tests.extension import Processors
from tests.fixtures import random_image

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 160, "block_size": 8}
TEXT = "Look with care, one two three four five six seven. "
WITH_IMAGE = {
    "prompt": "USER: <image>\nWhat is this? ASSISTANT:",
    "multi_modal_data": {"image": random_image(40, 30, 1)},
}
HERE: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}


class Rising(BatchedLogitsProcessor):
    """Lets only tokens above the last one come, and notes how many rows it gets at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, logits: torch.Tensor, sequences: Sequence[SequenceTokens]) -> torch.Tensor:
        self.sizes.append(len(sequences))
        for row, one in zip(logits, sequences, strict=True):
            row[: (one.output_token_ids[-1] + 1 if one.output_token_ids else 0)] = -torch.inf
        return logits


def away(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """No token comes twice."""
    return logits.index_fill(0, torch.tensor(output, dtype=torch.int64), -torch.inf)


RISING = Rising()
THIRDS = {"name": "only", "arguments": {"divisor": 3}}
PROCESSED: list[dict[str, Any]] = [
    {"temperature": 0, "logits_processors": [away]},
    {
        "temperature": 1.2,
        "seed": 1,
        "logits_processors": [THIRDS],
        "logprobs": 2,
    },
    {"temperature": 0, "logits_processors": [RISING], "max_tokens": 5},
    {"temperature": 0.9, "seed": 2, "logits_processors": ["only", away], "repetition_penalty": 1.2, "n": 2},
    {"temperature": 1.0, "seed": 3, "logits_processors": [RISING], "max_tokens": 5, "logprob_token_ids": [7]},
]
FREE: list[dict[str, Any]] = [{"temperature": 0, "logprobs": 1}, {"temperature": 1.0, "seed": 6, "logprobs": 0}]
PROMPTS: list[Any] = ["yes", TEXT, WITH_IMAGE, TEXT * 2]
REQUESTS = [
    (PROMPTS[number % 4], SamplingParams(**{**HERE, **given})) for number, given in enumerate([*PROCESSED, *FREE])
]


@pytest.fixture(scope="module", autouse=True)
def _extension() -> Iterator[None]:
    extension = Processors()
    load_extensions().register(extension, name="the extension of the tests")
    yield
    load_extensions().unregister(extension)


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llava), **OPTIONS, num_kv_blocks=200) as loaded:
        yield loaded


def told(outputs: Any) -> list[Any]:
    return [[(one.token_ids, one.text, one.logprobs) for one in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Any]:
    """What each request gives alone."""
    return told(llm.generate([prompt], [params], use_tqdm=False)[0] for prompt, params in REQUESTS)


def test_processors_of_transformers(llm: LLM, tiny_llava: Path) -> None:
    """Greedy outputs of its `generate` with the same processors, of a prompt with an image."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    inputs = processor(text=WITH_IMAGE["prompt"], images=WITH_IMAGE["multi_modal_data"]["image"], return_tensors="pt")
    chain = [RepetitionPenaltyLogitsProcessor(3.0), NoRepeatNGramLogitsProcessor(1)]
    made = model.generate(
        **inputs, do_sample=False, max_new_tokens=20, eos_token_id=None, logits_processor=LogitsProcessorList(chain)
    )
    want = made[0, inputs["input_ids"].shape[1] :].tolist()
    for given in (chain, [LogitsProcessorList(chain)]):
        (output,) = llm.generate(
            WITH_IMAGE, SamplingParams(**HERE, temperature=0, logits_processors=given), use_tqdm=False
        )
        assert output.outputs[0].token_ids == want
    (plain,) = llm.generate(WITH_IMAGE, SamplingParams(**HERE, temperature=0), use_tqdm=False)
    assert plain.outputs[0].token_ids != want


def test_outputs_are_as_processed(llm: LLM, alone: list[Any]) -> None:
    """What each processor says of the tokens holds; log-probabilities are the model's own."""
    for (prompt, params), outputs in zip(REQUESTS, alone, strict=True):
        names = [one.name or one.function for one in params.logits_processors or ()]
        num_prompt = len(llm.engine.input_processor.process(prompt).token_ids)
        for token_ids, _, _ in outputs:
            assert away not in names or len({*token_ids}) == len(token_ids)
            assert RISING not in names or sorted({*token_ids}) == token_ids
            if "only" in names:
                divisor = params.logits_processors[0].arguments.get("divisor", 2)  # type: ignore[index]
                assert [t % divisor for t in token_ids] == [(num_prompt + i) % divisor for i in range(len(token_ids))]
    token_ids, _, positions = alone[1][0]
    assert any(position[token].rank > 3 for position, token in zip(positions, token_ids, strict=True))


def test_results_do_not_depend_on_the_batch(llm: LLM, alone: list[Any]) -> None:
    """Nor do those of neighbours without a processor; rows with the same object are given at once."""
    RISING.sizes.clear()
    assert told(generate_together(llm, *zip(*REQUESTS, strict=True))) == alone
    assert max(RISING.sizes) == 2


def test_results_do_not_depend_on_chunks_and_preemptions(tiny_llava: Path, alone: list[Any]) -> None:
    with LLM(str(tiny_llava), **OPTIONS | {"max_model_len": 100}, num_kv_blocks=16, max_num_batched_tokens=16) as llm:
        assert told(generate_together(llm, *zip(*REQUESTS, strict=True))) == alone
        assert llm.engine.scheduler.get_stats().num_preemptions > 0


def test_neighbours_in_bfloat16(tiny_llava: Path) -> None:
    """Their tokens are the same, whatever type the processed logits have."""
    plain = [SamplingParams(**HERE, temperature=1.0, seed=seed) for seed in range(6)]
    changed = SamplingParams(**HERE, temperature=0, logits_processors=[away])
    with LLM(str(tiny_llava), **OPTIONS | {"dtype": "bfloat16"}) as llm:
        want = told(generate_together(llm, [TEXT] * 6, plain))
        assert told(generate_together(llm, [TEXT] * 7, [*plain, changed]))[:6] == want


def test_a_processor_that_fails_ends_its_request_alone(llm: LLM, alone: list[Any]) -> None:
    """By an error, by what it returns, and within a batch of one object: each is named."""

    class Choosy(Rising):
        def __call__(self, logits: torch.Tensor, sequences: Sequence[SequenceTokens]) -> torch.Tensor:
            if any(len(one.prompt_token_ids) < 5 for one in sequences):
                raise ValueError("too short")
            return super().__call__(logits, sequences)

    choosy = Choosy()
    broken: list[tuple[Any, str]] = [
        ("broken", "generated token 2: the logits processor broken failed with KeyError: 'lost'"),
        (lambda output, logits: None, "must return a tensor, not NoneType; return the logits"),
        (lambda output, logits: logits - torch.inf, "leaves no token that may be generated"),
        (choosy, "Choosy failed with ValueError: too short"),
    ]
    prompts, params = zip(*REQUESTS, strict=True)
    wrong = [SamplingParams(**HERE, temperature=0, logits_processors=[one]) for one, _ in broken]
    right = SamplingParams(**{**HERE, "max_tokens": 5}, temperature=0, logits_processors=[choosy])
    outputs = llm.generate(["yes"] * 4 + [TEXT, *prompts], [*wrong, right, *params], use_tqdm=False, on_error="return")
    for output, (_, words) in zip(outputs, broken, strict=False):
        assert isinstance(output.error, RequestFailedError)
        assert words in str(output.error)
    assert outputs[4].error is None
    assert told(outputs[5:]) == alone
    assert llm.engine.scheduler.blocks.num_free_blocks == llm.engine.scheduler.blocks.capacity


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["lost"], "registers 'lost'.*there are: broken, only"), ([lambda one: one], "must take .output_token_ids"),
        ([3], "takes functions, names"), ("only", "takes a list"), (["only"] * 65, "at most 64"),
        ([{"name": "only", "arguments": {"divider": 3}}], "only takes divisor, got divider"),
        ([{"name": ""}], "takes functions, names"), ([{"nam": "only"}], "takes functions, names"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(llm: LLM, wrong: Any, words: str) -> None:
    """Before anything runs."""
    with pytest.raises(InvalidParameterError, match=words) as caught:
        llm.generate("yes", SamplingParams(logits_processors=wrong), use_tqdm=False)
    assert caught.value.param == "logits_processors"


def test_arguments_are_told_apart() -> None:
    """Equal ones share a processor, others never do; what cannot be told apart is refused."""
    made: list[Any] = []

    def make(arguments: Any) -> Any:
        made.append(arguments)
        return away

    def check(arguments: Any) -> None:
        processing.check(SamplingParams(logits_processors=[{"name": "own", "arguments": arguments}]))

    processing = Processing({"own": make})
    for given in ({"a": {1: 2}}, {"a": {"1": 2}}, {"a": {1: 2}}, {"b": 1, 2: 3}):
        check(given)
    assert made == [{"a": {1: 2}}, {"a": {"1": 2}}, {"b": 1, 2: 3}]
    circle: dict[str, Any] = {}
    circle["a"] = circle
    for wrong in (circle, {"a": torch.arange(5000)}, {"a": 1 << 70}):
        with pytest.raises(InvalidParameterError, match="arguments of 'own' must be plain data"):
            check(wrong)


def test_a_draft_that_a_processor_cannot_follow(caplog: pytest.LogCaptureFixture) -> None:
    """Is no one's failure as long as it may be wrong; its sequence's own token is logged."""

    def picky(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        if 7 in output:
            raise ValueError("no sevens")
        return logits

    processing = Processing({})
    params = SamplingParams(temperature=0, logits_processors=[picky])
    for outputs, drafts, wanted in (([3], [7], []), ([7], [], ["ERROR"])):
        caplog.clear()
        sequence = NewSequence("r", [1], outputs, params, ())
        states = SamplingState(sequence, 20, 0, SamplingExtensions(processing=processing)).along(drafts)
        processing(torch.zeros(len(states), 20), states)
        assert isinstance(states[-1].failure, RequestFailedError)
        assert [record.levelname for record in caplog.records if record.levelname != "DEBUG"] == wanted


def test_without_the_extension() -> None:
    """It is told what is missing."""
    with pytest.raises(InvalidParameterError, match=r"pip install \./extensions/decoding"):
        NO_EXTENSIONS.check_processors(SamplingParams(logits_processors=[away]))


def test_other_engines(tiny_llava: Path, alone: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread functions do, too; in another process names alone, and it is told why."""
    installed = tmp_path / "strangers_processors-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers-processors\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[corellm.extensions]\nown = strangers_processors:Processors\n")
    (tmp_path / "strangers_processors.py").write_text((Path(__file__).parent / "extension.py").read_text())
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    async def final(llm: AsyncLLM, number: int) -> Any:
        return [output async for output in llm.generate(*REQUESTS[number])][-1]

    async def outputs_of(llm: AsyncLLM, *numbers: int) -> list[Any]:
        return told(await asyncio.gather(*(final(llm, number) for number in numbers)))

    async def run() -> None:
        async with AsyncLLM(str(tiny_llava), **OPTIONS) as llm:
            assert await outputs_of(llm, 0, 1) == alone[:2]
        async with ProcessLLM(str(tiny_llava), **OPTIONS) as llm:
            with pytest.raises(InvalidParameterError, match="cannot go to an engine in another process"):
                await final(llm, 0)
            assert await outputs_of(llm, 1) == alone[1:2]

    asyncio.run(run())

"""Each hook is called when its section says, counted while models of several families load, generate and stop.

With two images in a request, a hook that is called per item is called twice, one that is called per request once. With
more generated tokens, a hook that is called per step is called more often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.hookspecs import STATIC_HOOKS
from corellm.loading import opening
from corellm.plugin.contract import CONTRACT
from corellm_blip2.instruct.tiny import make_tiny_checkpoint as make_instruct
from corellm_florence2.tiny import make_tiny_checkpoint as make_florence2
from corellm_gemma3.tiny import make_tiny_checkpoint as make_gemma3
from corellm_llava.tiny import make_tiny_checkpoint as make_llava
from corellm_mllama.tiny import make_tiny_checkpoint as make_mllama
from corellm_qwen_vl.tiny import make_tiny_checkpoint as make_qwen
from corellm_voxtral.tiny import make_tiny_checkpoint as make_voxtral
from tests.docs.hook_sections import read_order, read_sections
from tests.fixtures import random_image

SECTIONS = read_sections()
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
"""Takes content as text, so that placeholder strings are needed."""
FOR_THE_DUMMIES = {
    "get_item_kwargs", "call_hf_processor", "get_mm_fields_config", "get_prompt_updates",
    "apply_hf_processor_tokens_only", "get_bidirectional_spans",
}  # fmt: skip
"""Called at load, too, for the dummy items; the pages say so once for all."""


class Watch:
    """Counts the hook calls of models that are loaded while it watches."""

    def __init__(self) -> None:
        self.called: Counter[str] = Counter()
        """In the order of the first calls."""

    def during(self, call: Callable[[], object]) -> Counter[str]:
        """Return how often each hook is called while `call` runs."""
        self.called = Counter()
        call()
        return self.called

    def note(self, name: str, *_: object) -> None:
        """Count a call of a hook."""
        self.called[name] += 1


@contextmanager
def watching() -> Iterator[Watch]:
    """Watch every model that is loaded meanwhile."""
    watch = Watch()
    build, ask = opening.build_manager, opening.call_static_hook

    def watched_build(*arguments: Any, **options: Any) -> Any:
        manager = build(*arguments, **options)
        manager.add_hookcall_monitoring(watch.note, lambda *_: None)
        return manager

    def watched_ask(adapter: Any, hook: str, distribution: str) -> Any:
        watch.note(hook)
        return ask(adapter, hook, distribution)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(opening, "build_manager", watched_build)
        monkeypatch.setattr(opening, "call_static_hook", watched_ask)
        yield watch


@dataclass(frozen=True)
class Observed:
    """When the hooks of one model were called."""

    when: dict[str, set[str]]
    """`{hook: when it is called}`."""
    at_load: list[str]
    """Hooks in the order of their first calls."""
    in_a_request: list[str]


def observe(watch: Watch, path: Path) -> Observed:
    """Load a model, run a few requests, and return when its hooks were called."""
    models: list[LLM] = []
    at_load = watch.during(lambda: models.append(LLM(str(path), dtype="float32", enforce_eager=True)))
    (llm,) = models

    def ask(*seeds: int, tokens: int = 1) -> Counter[str]:
        images = [{"type": "image", "image": random_image(40, 30, seed)} for seed in seeds]
        messages = [{"role": "user", "content": [*images, {"type": "text", "text": "?"}]}]
        params = SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens)
        return watch.during(lambda: llm.chat(messages, params, use_tqdm=False, chat_template=TEMPLATE))

    ask(0)  # hooks that only the first request calls
    one, two, longer = ask(1), ask(2, 3), ask(4, tokens=5)
    seen: dict[str, set[str]] = {name: set() for name in CONTRACT.hooks}
    for name in at_load:
        seen[name].add("before loading" if name in STATIC_HOOKS else "at load")
    for name, times in one.items():
        per = "step" if longer[name] > times else "item" if two[name] == 2 * times else "request"
        seen[name].add(f"per {per}")
    if called_for_embeddings(watch, llm):
        seen["refuse_embeddings"].add("per request")
    llm.close()
    return Observed(seen, list(at_load), list(one))


def observe_states(watch: Watch, path: Path, text: str, names: Sequence[str]) -> Observed:
    """Return when hooks were called that only models have whose decoder attends to states."""
    with LLM(str(path), dtype="float32") as llm:

        def ask(seed: int, tokens: int) -> Counter[str]:
            prompt = {"prompt": text, "multi_modal_data": {"image": random_image(40, 30, seed)}}
            params = SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens)
            return watch.during(lambda: llm.generate(prompt, params, use_tqdm=False))

        one, longer = ask(1, 1), ask(2, 5)
    seen: dict[str, set[str]] = {name: set() for name in CONTRACT.hooks}
    for name in names:
        seen[name].add("per request" if one[name] == longer[name] == 1 else f"{one[name]} and {longer[name]} times")
    return Observed(seen, [], [])


def observe_reading_of_prompts(watch: Watch, path: Path) -> Observed:
    """Return when the hook is called that only a model whose encoder reads prompts has."""
    name, image = "get_item_kwargs", {"multi_modal_data": {"image": random_image(40, 30, 1)}}
    models: list[LLM] = []
    at_load = watch.during(lambda: models.append(LLM(str(path), dtype="float32", enforce_eager=True)))
    (llm,) = models

    def ask(prompt: object, tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens)
        return watch.during(lambda: llm.generate(prompt, params, use_tqdm=False))[name]

    once, cached, longer, text = (
        ask({"prompt": "?", **image}, 1),
        ask({"prompt": "?", **image}, 1),
        ask({"prompt": "!", **image}, 5),
        ask("?", 1),
    )
    llm.close()
    seen: dict[str, set[str]] = {hook: set() for hook in CONTRACT.hooks}
    if at_load[name]:
        seen[name].add("at load")
    if (once, cached, longer, text) == (1, 1, 1, 0):
        seen[name].add("per request")
    return Observed(seen, [], [])


def observe_transcriptions(watch: Watch, path: Path) -> Observed:
    """Return when the hooks are called that ask for what is said."""
    name, form = "get_transcription_prompt", "get_speech_form"
    seen: dict[str, set[str]] = {hook: set() for hook in CONTRACT.hooks}
    with LLM(str(path), dtype="float32", enforce_eager=True) as llm:
        at_load, without = watch.called, watch.during(lambda: llm.generate("?", use_tqdm=False))
        for hook in (name, form):
            if at_load[hook] or without[hook]:
                seen[hook].add("at load")
        processor = llm.engine.input_processor
        if [watch.during(lambda: processor.speech_form)[form] for _ in range(2)] == [1, 0]:
            seen[form].add("per request")
        ask = processor.transcription_prompt
        if watch.during(lambda: ask("en", translate=False, context=""))[name] == 1:
            seen[name].add("per request")
    return Observed(seen, [], [])


def called_for_embeddings(watch: Watch, llm: LLM) -> bool:
    """Whether requests with embeddings, and no others, call `refuse_embeddings`."""
    if "refuse_embeddings" in watch.called:
        return False
    embeddings = torch.zeros(1, 16, llm.engine.context.hf_config.text_config.hidden_size)
    prompt = {"prompt": "<image> ?", "multi_modal_data": {"image_embeds": embeddings}}
    return "refuse_embeddings" in watch.during(lambda: llm.generate(prompt, use_tqdm=False, on_error="return"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Observed]:
    """Three models, as each calls some hooks that the others do not."""
    with watching() as watch:
        return [observe(watch, make(tmp_path_factory.mktemp("tiny"))) for make in (make_llava, make_qwen, make_gemma3)]


@pytest.fixture(scope="module")
def with_states(tmp_path_factory: pytest.TempPathFactory) -> list[Observed]:
    """Florence-2, and Mllama."""
    kinds = (
        (make_florence2, "?", ("get_decoder_prompt", "get_encoder_states")),
        (make_mllama, "<|image|>?", ("get_visible_states", "get_encoder_states")),
    )
    with watching() as watch:
        return [observe_states(watch, make(tmp_path_factory.mktemp("tiny")), *told) for make, *told in kinds]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """InstructBLIP."""
    with watching() as watch:
        return observe_reading_of_prompts(watch, make_instruct(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """Voxtral."""
    with watching() as watch:
        return observe_transcriptions(watch, make_voxtral(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("name", sorted(CONTRACT.hooks))
def test_when_it_is_called(
    name: str, models: list[Observed], with_states: list[Observed], reader: Observed, listener: Observed
) -> None:
    """As its section says."""
    observed = [*models, *with_states, reader, listener]
    told, seen = set(SECTIONS[name].called), set().union(*(model.when[name] for model in observed))
    if name in FOR_THE_DUMMIES:
        told.add("at load")
    if "per encoder batch" in told:  # two images of one size are one batch
        told = told - {"per encoder batch"} | {"per request"}
    if name == "merge_multimodal_embeddings":  # per step that has items in it: of a short prompt, one
        told = told - {"per step"} | {"per request"}
    assert told == seen


def test_the_order_of_calls(models: list[Observed]) -> None:
    """The table on the page has the hooks in the order of their first calls."""
    before, load, front_end, request, step = read_order()
    first_use = "register_processor"  # of the processor, wherever that is
    fixed = [name for name in before + load if name != first_use]
    for model in models:
        assert [name for name in model.at_load if name in fixed] == fixed
        assert model.at_load.index("load_model") < model.at_load.index(first_use)
        if model is not models[-1]:  # Gemma 3 names the processor's arguments before it makes one
            assert model.at_load.index(first_use) < model.at_load.index(load[load.index(first_use) + 1])
        told = [name for name in front_end + request + step if name in model.in_a_request]
        assert [name for name in model.in_a_request if name in told] == told

"""A checkpoint tried beside its reference: what is the same, what differs, and the hook to look at.

The findings of `corellm try`. The checks are those rules of the contract that hold for weights of any kind, and some
requests beside the reference's greedy outputs; nothing is written, and no checkpoint is made.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from corellm.config import EngineConfig
from corellm.errors import ConfigError, CorellmError, RequestError
from corellm.llm import LLM
from corellm.loading.locating import LocatedModel, locate
from corellm.modelling.defaults import no_progress_bars
from corellm.modelling.weights import weight_files
from corellm.plugin.contract import CONTRACT
from corellm.sampling_params import SamplingParams
from corellm.system.memory import DeviceMemory
from corellm_testing.contract.base import ContractRules
from corellm_testing.contract.pairs import _asked as in_conversation
from corellm_testing.contract.perception import PerceptionRules
from corellm_testing.contract.same_outputs import SameOutputRules, tokens_and_logprobs
from corellm_testing.reference import Reference
from corellm_testing.rules import ContractBroken, guilty_hook
from corellm_testing.subject import Part, Subject

TOLERANCE = 1e-3
"""Largest difference of log-probabilities, in float32: large models add up more than tiny ones."""
_PER_WEIGHT = 2 * 4  # bytes: two models in float32
_INEXACT: Mapping[str, tuple[Any, ...]] = {
    "dtype": ("auto", "float32"),
    "quantization": (None,),
    "activation_dtype": ("auto",),
    "kv_cache_dtype": ("auto",),
    "mm_processor_kwargs": (None, {}),
    "hf_overrides": (None, {}),
    "load_format": ("auto",),
}
"""Options that change outputs, of which the reference knows nothing, and the values with which they do not."""

Request = tuple[str, dict[str, list[Any]]]
"""Prompt text, and media by modality."""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    kept: bool
    said: str = ""
    """What was measured, if the check holds; else what was expected, what came, and what to do."""
    hook: str | None = None
    """The hook to look at, where one is known."""
    seconds: float = 0.0


class _Checks(SameOutputRules, PerceptionRules):
    """The contract's rules that are asked here, and its words for a difference."""


class Trial:
    """A checkpoint that corellm and its reference run.

    Args:
        model: a directory, a hub name, or `demo`.
        max_tokens: tokens of each output.
        engine_args: the engine's options.

    Raises:
        CheckpointError, PluginError, ConfigError: there is no such checkpoint, or no plugin for it, or an option
            changes outputs.
        RequestError: there is not enough memory for two models.
    """

    def __init__(self, model: str, max_tokens: int = 16, **engine_args: Any) -> None:
        for name, exact in _INEXACT.items():
            if name in engine_args and engine_args[name] not in exact:
                stated = f"{name}={engine_args[name]!r:.100}"
                raise ConfigError(f"{stated} changes outputs, but not those of the reference, in float32; leave it out")
        self._engine_args = {**engine_args, "model": model, "dtype": "float32"}
        self._params = SamplingParams(temperature=0, max_tokens=max_tokens, min_tokens=max_tokens, logprobs=0)
        self.located = locate(EngineConfig.from_kwargs(**self._engine_args).model)
        self._max_tokens = max_tokens
        _require_memory(self.located.path)

    def findings(self) -> Iterator[Finding]:
        """Yield what each check finds, as soon as it is known; none comes after a model that does not load."""
        with ExitStack() as opened:
            loaded: list[LLM] = []
            loading = _found("loads", partial(self._load, loaded, opened))
            if not loading.kept and self.located.entry.is_fallback:  # it names what a plugin of the family would say
                loading = replace(loading, hook=next((hook for hook in CONTRACT.hooks if hook in loading.said), None))
            yield loading
            if not loading.kept:
                return
            subjects: list[Subject] = []
            referring = _found("the reference loads", partial(self._refer, loaded[0], subjects, opened))
            yield referring
            if referring.kept:
                yield from self._compared(subjects[0])

    def _load(self, loaded: list[LLM], opened: ExitStack) -> str:
        loaded.append(opened.enter_context(closing(LLM(**self._engine_args))))
        return f"by {self.located.entry.distribution}"

    def _refer(self, llm: LLM, subjects: list[Subject], opened: ExitStack) -> str:
        reference = reference_of(self.located)(self.located.path)
        opened.enter_context(closing(reference))
        subject = Subject(self.located.path, reference, llm.engine)
        subject.llm = llm
        subject.modalities = [modality for modality in subject.modalities if subject.several(modality) > 0]
        subjects.append(subject)
        with no_progress_bars():
            kind = type(reference.model)
        whose = "transformers'" if kind.__module__.startswith("transformers") else "the plugin's own"
        return f"{whose} {kind.__name__}"

    def _compared(self, subject: Subject) -> Iterator[Finding]:
        checks = _Checks()
        checks.reference = type(subject.reference)  # type: ignore[misc]  # an author's is of the class
        if subject.modalities:
            for what, rule in {
                "tokens of items are in the vocabulary": checks.test_tokens_of_items_are_in_the_vocabulary,
                "different items are told apart": checks.test_different_items_are_told_apart,
            }.items():
                checks.rule = what
                yield _found(what, partial(rule, subject))
        requests: dict[str, Request] = {}
        written = _found("the adapter writes requests", lambda: requests.update(_requests(subject)))
        if not written.kept:
            yield written
            return
        outputs: dict[str, Any] = {}
        for what, request in requests.items():
            checks.rule = what
            yield _found(what, partial(self._same, subject, checks, what, request, outputs))
        if len(outputs) == len(requests):
            yield _found("all of these in one batch", partial(self._same_in_a_batch, subject, requests, outputs))

    def _same(self, subject: Subject, checks: _Checks, what: str, request: Request, outputs: dict[str, Any]) -> str:
        """Compare one request's output with the reference's; return how far they are apart."""
        text, media = request
        with checks.expecting("the reference takes the request", hook="the contract class"):
            want = subject.reference.generate(text, media, {}, self._max_tokens)
        with checks.expecting("the request is served"):
            prompt = {"prompt": text, "multi_modal_data": media}
            (output,) = subject.llm.generate([prompt], self._params, use_tqdm=False)
        tokens, logprobs = outputs[what] = tokens_and_logprobs(output)
        same = output.prompt_token_ids == want.prompt_token_ids and tokens == want.token_ids
        apart = [abs(ours - theirs) for ours, theirs in zip(logprobs, want.logprobs, strict=False)]
        if not same or not all(by <= TOLERANCE for by in apart):  # none is NaN
            checks.equal(subject, output, want, what, with_items=bool(media))
        return f"{len(want.prompt_token_ids)} + {len(tokens)} tokens, log-probabilities within {max(apart):.0e}"

    def _same_in_a_batch(self, subject: Subject, requests: Mapping[str, Request], outputs: Mapping[str, Any]) -> str:
        prompts = [{"prompt": text, "multi_modal_data": media} for text, media in requests.values()]
        together = map(tokens_and_logprobs, subject.llm.generate(prompts, self._params, use_tqdm=False))
        if differ := [what for what, output in zip(requests, together, strict=True) if output != outputs[what]]:
            raise RequestError(f"alone these have other tokens or log-probabilities: {', '.join(differ)}")
        return "bit for bit as alone"


def reference_of(located: LocatedModel) -> type[Reference]:
    """Return the oracle that the plugin's shipped contract names for an adapter; transformers' own where none does."""
    adapter = located.entry.load()
    name = f"{adapter.__module__.partition('.')[0]}.contract"
    try:
        contract = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return Reference
    for _, member in inspect.getmembers(contract, inspect.isclass):
        if issubclass(member, ContractRules) and getattr(member, "adapter", None) is adapter:
            return member.reference
    return Reference


def _requests(subject: Subject) -> dict[str, Request]:
    """Return what is asked: of text alone, and with items of each kind, alone and beside others."""
    asked: dict[str, list[Part]] = {
        "text": ["What is the capital of France?"],
        "a longer text": ["Look with care, one two three four five six seven. " * 8 + "What comes next?"],
    }
    for modality in subject.modalities:
        one = [(modality, subject.item(modality, seed)) for seed in range(4)]
        count = subject.several(modality)
        asked |= {
            f"{modality}, then a question": [one[0], "What is this?"],
            f"a question, then {modality}": ["What is this? ", one[1]],
            f"{modality}, small": [(modality, subject.alike(modality, 2)), "Describe it."],
        }
        if count > 1:
            asked[f"{modality}, {count} of them"] = [*(part for item in one[:count] for part in (item, " and ")), "?"]
    requests = {what: subject.prompt(parts) for what, parts in asked.items()}
    for first, second in product(subject.modalities, repeat=2):
        if first != second or subject.several(first, 2) > 1:
            pair: list[Part] = [(first, subject.item(first, 3)), (second, subject.item(second, 5))]
            text = in_conversation(subject, ["Ask of ", pair[0], " and", pair[1], "?"])
            requests[f"{first} and {second} in a conversation"] = text, subject.prompt(pair)[1]
    return requests


def _found(check: str, run: Callable[[], str | None]) -> Finding:
    """Return what a check finds; its errors are findings."""
    start = time.monotonic()
    try:
        said = run() or ""
    except ContractBroken as broken:
        expected = f"expected {broken.expected}; got {broken.got}; {broken.fix}"
        return Finding(check, False, " ".join(expected.split()), _known(broken.hook), time.monotonic() - start)
    except Exception as error:
        named = error if isinstance(error, CorellmError) else f"{type(error).__name__}: {error}"
        return Finding(check, False, " ".join(str(named).split()), _known(guilty_hook(error)), time.monotonic() - start)
    return Finding(check, True, said, seconds=time.monotonic() - start)


def _known(hook: str) -> str | None:
    """Return what names hooks; None for what stands for none."""
    return hook if any(name in hook for name in CONTRACT.hooks) else None


def _require_memory(path: Path) -> None:
    """Refuse a checkpoint that does not fit into memory twice.

    Raises:
        CheckpointError: it has no weights that can be read.
        RequestError: what it takes, and what is free.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    whole, weights = path / "model.safetensors", 0
    for file in [whole] if whole.is_file() else weight_files(path):
        try:
            with safe_open(file, framework="pt") as opened:
                weights += sum(prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
        except SafetensorError:  # loading says what is wrong with it
            return
    needed, free = _PER_WEIGHT * weights, DeviceMemory(torch.device("cpu"), 1).free()
    if needed > free:
        raise RequestError(
            f"{path}: {weights:,} weights, twice in float32, take {needed / 2**30:.1f} GiB of memory, and "
            f"{free / 2**30:.1f} are free; try a smaller checkpoint of the same kind"
        )

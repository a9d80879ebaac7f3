"""A checkpoint tried beside transformers: what is the same, what differs, and the hook to look at.

The findings of `corellm try`. The checks are those rules of the contract that hold for weights of any kind, and some
requests beside the reference's greedy outputs; nothing is written, and no checkpoint is made.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from corellm.config import EngineConfig
from corellm.errors import ConfigError, CorellmError, RequestError
from corellm.llm import LLM
from corellm.loading.locating import LocatedModel, locate
from corellm.modelling.defaults import no_progress_bars
from corellm.plugin.contract import CONTRACT
from corellm.sampling_params import SamplingParams
from corellm.system.memory import DeviceMemory
from corellm_testing.contract.base import ContractRules
from corellm_testing.contract.pairs import PairRules
from corellm_testing.contract.perception import PerceptionRules
from corellm_testing.contract.same_outputs import tokens_and_logprobs
from corellm_testing.reference import Reference
from corellm_testing.rules import ContractBroken, guilty_hook
from corellm_testing.subject import Part, Subject

TOLERANCE = 1e-3
"""Largest difference of log-probabilities, in float32: large models add up more than tiny ones."""
_PER_WEIGHT = 2 * 4  # bytes: two models in float32
_INEXACT = {"dtype": ("auto", "float32"), "quantization": (None,), "kv_cache_dtype": ("auto",)}
"""Options that change outputs, and the values with which they do not."""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    kept: bool
    said: str = ""
    """Of a check that holds, what was measured; else what was expected, what came, and what to do."""
    hook: str | None = None
    """The hook to look at, where one is known."""
    seconds: float = 0.0


class _Checks(PairRules, PerceptionRules):
    """The contract's rules that are asked here, and its words for a difference."""


class Trial:
    """A checkpoint loaded twice, by corellm and by transformers.

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
                raise ConfigError(
                    f"{name}={engine_args[name]!r:.100} changes outputs, and these are compared in float32"
                )
        self._engine_args = {**engine_args, "model": model, "dtype": "float32"}
        self._params = SamplingParams(temperature=0, max_tokens=max_tokens, min_tokens=max_tokens, logprobs=0)
        self.located = locate(EngineConfig.from_kwargs(**self._engine_args).model)
        self._max_tokens = max_tokens
        _require_memory(self.located.path)

    def findings(self) -> Iterator[Finding]:
        """Yield what each check finds, as soon as it is known; none comes after a model that does not load."""
        loaded: list[LLM] = []
        loading = _found("loads", partial(self._load, loaded))
        if not loading.kept and self.located.entry.is_fallback:  # it names what a plugin of the family would say
            loading = replace(loading, hook=next((hook for hook in CONTRACT.hooks if hook in loading.said), None))
        yield loading
        if not loading.kept:
            return
        with closing(loaded[0]) as llm, no_progress_bars():
            reference = reference_of(self.located)(self.located.path)
            with closing(reference):
                subject = Subject(self.located.path, reference, llm.engine)
                subject.llm = llm
                yield from self._compared(subject)

    def _load(self, loaded: list[LLM]) -> str:
        llm = LLM(**self._engine_args)
        loaded.append(llm)
        return f"by {self.located.entry.distribution}"

    def _compared(self, subject: Subject) -> Iterator[Finding]:
        yield _found("the reference loads", partial(_name_of_reference, subject.reference))
        checks = _Checks()
        checks.reference = type(subject.reference)  # type: ignore[misc]  # an author's is of the class
        rules: dict[str, Callable[[Subject], None]] = {}
        if subject.modalities:
            rules["tokens of items are in the vocabulary"] = checks.test_tokens_of_items_are_in_the_vocabulary
            rules["different items are told apart"] = checks.test_different_items_are_told_apart
        if len(subject.modalities) > 1 or any(subject.several(modality, 2) > 1 for modality in subject.modalities):
            rules["pairs of items, in a conversation"] = checks.test_pairs_in_a_conversation_equal_the_reference
        for what, rule in rules.items():
            checks.rule = what
            yield _found(what, partial(rule, subject))
        outputs: dict[str, Any] = {}
        requests = {what: subject.prompt(parts) for what, parts in _requests(subject).items()}
        for what, (text, media) in requests.items():
            checks.rule = what
            yield _found(what, partial(self._same, subject, checks, what, text, media, outputs))
        if len(outputs) == len(requests):
            yield _found("all of these in one batch", partial(self._same_in_a_batch, subject, requests, outputs))

    def _same(
        self, subject: Subject, checks: _Checks, what: str, text: str, media: dict[str, Any], outputs: dict[str, Any]
    ) -> str:
        """Compare one request's output with the reference's; return how far they are apart."""
        with checks.expecting("the reference takes the request", hook="the contract class"):
            want = subject.reference.generate(text, media, {}, self._max_tokens)
        with checks.expecting("the request is served"):
            prompt = {"prompt": text, "multi_modal_data": media}
            (output,) = subject.llm.generate([prompt], self._params, use_tqdm=False)
        tokens, logprobs = outputs[what] = tokens_and_logprobs(output)
        apart = max(abs(ours - theirs) for ours, theirs in zip(logprobs, want.logprobs, strict=True))
        if output.prompt_token_ids != want.prompt_token_ids or tokens != want.token_ids or not apart <= TOLERANCE:
            checks.equal(subject, output, want, what, with_items=bool(media))
        return f"{len(want.prompt_token_ids)} + {len(tokens)} tokens, log-probabilities within {apart:.0e}"

    def _same_in_a_batch(self, subject: Subject, requests: dict[str, Any], outputs: dict[str, Any]) -> str:
        prompts = [{"prompt": text, "multi_modal_data": media} for text, media in requests.values()]
        together = subject.llm.generate(prompts, self._params, use_tqdm=False)
        differ = [
            what
            for what, output in zip(requests, together, strict=True)
            if tokens_and_logprobs(output) != outputs[what]
        ]
        if differ:
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


def _name_of_reference(reference: Reference) -> str:
    """Return whose the reference's model is, and its class, once it is loaded."""
    kind = type(reference.model)
    whose = "transformers'" if kind.__module__.startswith("transformers.") else "the plugin's own"
    return f"{whose} {kind.__name__}"


def _requests(subject: Subject) -> dict[str, list[Part]]:
    """Return what is asked: a dozen prompts where the model takes items, of text alone and of all kinds and counts."""
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
    if len(subject.modalities) > 1:
        asked["one of each"] = [*((modality, subject.item(modality, 5)) for modality in subject.modalities), "Why?"]
    return asked


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
        RequestError: what it takes, and what is free.
    """
    import torch
    from safetensors import safe_open

    weights = 0
    for file in path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            weights += sum(prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
    needed, free = _PER_WEIGHT * weights, DeviceMemory(torch.device("cpu"), 1).free()
    if needed > free:
        raise RequestError(
            f"{path}: {weights / 1e9:.1f} billion weights, twice in float32, take {needed / 2**30:.1f} GiB of memory, "
            f"and {free / 2**30:.1f} are free; try a smaller checkpoint of the same kind"
        )

"""The rule about masks: which tokens each token of a prompt sees, in every layer, is what the reference's masks say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from corellm.sampling_params import SamplingParams
from corellm.system.transfers import upload_all
from corellm_testing.contract.base import ContractRules
from corellm_testing.subject import Part, Subject

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.attention.backend import AttentionCall
    from corellm.frontend.input_processor import ProcessedPrompt

HOOK = "get_bidirectional_spans"


class VisibilityRules(ContractRules):
    """Attention is causal within a window, but for the spans that the adapter names."""

    def test_tokens_see_what_they_see_in_the_reference(self, subject: Subject) -> None:
        """In every layer, for text alone, one item, several of them side by side and apart, and text behind them."""
        for parts in _prompts(subject):
            text, media = subject.prompt(parts)
            try:
                theirs = subject.reference.visible_tokens(text, media, {})
            except Exception:  # the reference does not take them, or not so: nothing to compare with
                continue
            if theirs is None:  # its attention cannot be watched: its outputs are compared
                return
            with self.expecting("the spans of a prompt", hook=HOOK):
                processed = subject.process(text, media)
                ours = engine_visibility(subject, processed)
            for layer, seen in theirs.items():
                self._same(f"{text!r:.80}", layer, ours.get(layer), seen)

    def _same(self, what: str, layer: int, ours: Tensor | None, theirs: Tensor) -> None:
        __tracebackhide__ = True
        if ours is None or ours.shape != theirs.shape:  # other rules compare layers and tokens
            return
        wrong = (ours != theirs.cpu()).nonzero()
        if not len(wrong):
            return
        query, key = wrong[0].tolist()
        sees = "sees" if theirs[query, key] else "does not see"
        self.fail(
            HOOK,
            expected=f"in {what}, layer {layer}: token {query} {sees} token {key}, as in the reference",
            got=f"it {'does' if ours[query, key] else 'does not'}; {len(wrong)} pairs of tokens differ",
            fix="return [start, end) of the prompt's tokens that see each other: embedded_spans(mm_features) where an "
            "item's do, [(0, len(token_ids))] where the whole prompt does; implement no such hook for causal models",
        )


def _prompts(subject: Subject) -> list[list[Part]]:
    """Return prompts by their parts."""
    found: list[list[Part]] = [["What is in the image?"]]
    for modality in subject.modalities:
        items: list[Part] = [(modality, subject.item(modality, seed)) for seed in (0, 3)]
        found.append([items[0], "What?"])
        if subject.several(modality) > 1:
            found.append(["Look: ", items[0], items[1], " and here."])
            found.append(["Look: ", items[0], " then ", items[1], "\nWhat is it?"])
    return found


@dataclass
class _Watched:
    """An attention backend that notes what each layer's tokens see, beside computing it."""

    backend: Any
    layers: list[int] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)
    windows: list[int | None] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def forward(self, call: AttentionCall, cache: Any, metadata: Any) -> Tensor:
        """See `AttentionBackend.forward`."""
        self.steps.append(metadata)
        self.windows.append(call.sliding_window)
        attended: Tensor = self.backend.forward(call, cache, metadata)
        return attended


@dataclass
class _WatchedStep:
    """A step that notes which layers attend to the prompt's tokens: others attend to states of items."""

    step: Any
    layers: list[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        """See `PagedStep.attend`."""
        self.layers.append(layer)
        attended: Tensor = self.step.attend(layer, call)
        return attended


def engine_visibility(subject: Subject, processed: ProcessedPrompt) -> Mapping[int, Tensor]:
    """Return by layer which tokens each token of a prompt sees in the engine, `[num_tokens, num_tokens]` bool."""
    import torch

    from corellm.attention.reference import causal_mask
    from corellm.frontend.stated_parts import spans_of
    from corellm.scheduling.batch import NewSequence, SequenceChunk

    runner, count = subject.llm.engine.runner, len(processed.token_ids)
    spans = spans_of(subject.hooks, processed.token_ids, processed.features)
    state = runner.new_state(NewSequence("", [0] * count, [], SamplingParams(), [], part={"spans": spans}))
    chunk = SequenceChunk("", 0, count, [0] * count, [0] * -(-count // runner.block_size), samples=False)
    watched, make_step = _Watched(runner.backend), runner._paged
    runner.backend = watched  # type: ignore[assignment]
    runner._paged = lambda *given: _WatchedStep(make_step(*given), watched.layers)  # type: ignore[method-assign,assignment]
    try:
        with torch.inference_mode():
            runner.forward(upload_all(runner.lay_out([chunk], [state]), runner.device), [chunk], [state])
    finally:
        runner.backend = watched.backend
        del runner._paged
    positions = torch.arange(count)
    seen: dict[int, Tensor] = {}
    for layer, step, window in zip(watched.layers, watched.steps, watched.windows, strict=True):
        seen[layer] = causal_mask(
            count,
            count,
            window,
            positions.device,
            *(None if each is None else each.cpu() for each in step.seen_by(slice(None))),
        )
    return seen

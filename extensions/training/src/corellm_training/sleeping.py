"""An engine that sleeps: memory is given back, requests wait, and results are the same after as without.

Requests that run are preempted by recompute; those that come queue up. Weights can be replaced, asleep or awake. Knows
the engine's scheduler and its memory; that weights are read and placed is `model_weights`' to know. Imports no torch
until an engine sleeps. Functions are called in the thread of the engine, between two steps.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from corellm.engine.atomic import atomic
from corellm.errors import InvalidParameterError
from corellm.system.allocator import return_freed_memory

if TYPE_CHECKING:  # both import torch
    from corellm.engine.llm_engine import LLMEngine
    from corellm_training.model_weights import ModelWeights
    from corellm_training.set_aside import SetAside

TAGS = WEIGHTS, KV_CACHE = "weights", "kv_cache"
_sleepers: WeakValueDictionary[int, Sleeper] = WeakValueDictionary()
"""Of engines that slept or got other weights, which have them until they are shut down; by the engine's `id`."""


def sleep(engine: LLMEngine, keep_weights: bool) -> None:
    """Set aside what is awake; drop weights that were kept, if they are not to be."""
    _sleeper_of(engine).sleep(keep_weights=keep_weights)


def wake_up(engine: LLMEngine, tags: Collection[str]) -> None:
    """Bring back what is set aside of these."""
    _sleeper_of(engine).wake_up(frozenset(tags))


def is_sleeping(engine: LLMEngine) -> bool:
    """Return whether the model sleeps, or a part of it."""
    return engine.is_sleeping


def update_weights(engine: LLMEngine, directory: str, take: bool) -> None:
    """Give the model the weights of a directory; `take` moves its files away."""
    _sleeper_of(engine).update_weights(Path(directory), take=take)


def _sleeper_of(engine: LLMEngine) -> Sleeper:
    _ = engine.runner  # raises if the engine was shut down
    sleeper = _sleepers.get(id(engine))
    if sleeper is None:
        sleeper = _sleepers[id(engine)] = Sleeper(engine)
        engine.closing.callback(sleeper.close)
    return sleeper


class Sleeper:
    """What an engine has set aside, and its weights' files.

    An interrupt may come between any two lines: then it sleeps on, and `wake_up` can be called again.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._asleep: set[str] = set()
        self._cache: SetAside | None = None
        self._kept: SetAside | None = None
        """The weights, if their values are kept."""
        self._weights: ModelWeights | None = None
        self._outdated = False
        """Whether the weights in memory are not those of the files."""
        self._num_seqs = engine.scheduler.max_num_seqs

    def sleep(self, *, keep_weights: bool) -> None:
        """As the function of this name."""
        from corellm.loading.weight_places import weight_places
        from corellm_training.set_aside import SetAside

        runner, weights = self._engine.runner, None if keep_weights else self._model_weights()
        self._halt()
        self._asleep.add(KV_CACHE)
        if self._cache is None:
            self._cache = SetAside((*runner.kv_cache.tensors, *runner.kv_cache.host_tensors), keep=False)
        if weights is not None:
            self._drop(weights)
        elif WEIGHTS not in self._asleep:
            self._asleep.add(WEIGHTS)
            places = weight_places(runner.model)
            self._kept = SetAside((place.tensor for place in places.values()), keep=True)
        _return_memory()

    def wake_up(self, tags: frozenset[str]) -> None:
        """Bring back what is set aside of these; requests run once all of it is.

        Raises:
            CheckpointError, PluginError, ConfigError: the weights cannot be read; it sleeps on.
        """
        from corellm.system.devices import on_device

        runner, left = self._engine.runner, self._asleep - tags
        with on_device(runner.device):
            if WEIGHTS in tags:
                self._bring_weights()
            if KV_CACHE in tags and self._cache is not None:
                self._cache.restore()
                self._cache = None
                runner.touch_cache(self._engine.scheduler.max_num_batched_tokens)
            if not left and self._engine.is_sleeping and self._engine.capture is not None:
                self._engine.capture()
        self._asleep = left
        if not left:
            self._engine.scheduler.max_num_seqs = self._num_seqs

    def update_weights(self, directory: Path, *, take: bool) -> None:
        """Give the model weights of a directory, now or when its weights wake; see `ModelWeights.add_update`."""
        weights, wake = self._model_weights(), WEIGHTS not in self._asleep
        before = weights.add_update(directory, take=take)
        self._halt()
        self._drop(weights)
        try:
            if wake:
                self.wake_up(frozenset({WEIGHTS}))
        except Exception:
            weights.undo_update(before)
            self.wake_up(frozenset({WEIGHTS}))
            raise
        finally:
            weights.forget_files()

    def close(self) -> None:
        """Delete files of updates."""
        if self._weights is not None:
            self._weights.close()

    def _halt(self) -> None:
        """Preempt all requests, whose keys and values are lost, and let none run."""
        if self._asleep:
            return
        _preempt_all(self._engine)
        if self._engine.capture is not None:
            self._engine.runner.drop_graphs()

    def _drop(self, weights: ModelWeights) -> None:
        self._asleep.add(WEIGHTS)
        self._kept, self._outdated = None, True
        weights.drop()

    def _bring_weights(self) -> None:
        if self._outdated:
            self._model_weights().read()
            _return_memory()
        elif self._kept is not None:
            self._kept.restore()
        self._kept, self._outdated = None, False

    def _model_weights(self) -> ModelWeights:
        from corellm_training.model_weights import ModelWeights

        engine = self._engine
        if not engine.places:
            raise InvalidParameterError(
                "weights of a model that generates text alone can be dropped or updated; use level 1, or load it anew",
                param="level",
            )
        if self._weights is None:
            tied = getattr(engine.runner.model, "all_tied_weights_keys", None) or ()
            self._weights = ModelWeights(engine.config, engine.located, engine.places, engine.max_model_len, tied)
        return self._weights


@atomic
def _preempt_all(engine: LLMEngine) -> None:
    engine.restore()
    engine.scheduler.blocks.reset_prefix_cache()
    engine.scheduler.max_num_seqs = 0  # steps admit no request; they go on to return outputs, as of aborted ones


def _return_memory() -> None:
    from corellm.system.memory import release_memory

    release_memory()
    return_freed_memory()

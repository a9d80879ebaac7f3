"""Listens to a loaded model's hooks: what they are given and return, whether they write into it or keep it.

Knows pluggy and the kinds of values that hooks have; knows no rule.
"""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any

import pluggy

from corellm.media.type_checks import is_array, is_image, is_tensor
from corellm.media.video import Video
from corellm_testing.content import content
from corellm_testing.subject import Subject

Arguments = Mapping[str, Any]


@contextmanager
def listening(
    subject: Subject, before: Callable[[str, Arguments], None], after: Callable[[str, Arguments, Any], None]
) -> Iterator[None]:
    """Call `before(hook, arguments)` and `after(hook, arguments, result)` around every hook call inside.

    After an error the result is None.
    """
    caller: Any = subject.hooks.get_dummy_text
    manager: pluggy.PluginManager = caller._hookexec.__self__  # a caller says in no other way whose it is
    undo = manager.add_hookcall_monitoring(
        lambda hook, _, given: before(hook, given),
        lambda outcome, hook, _, given: after(hook, given, None if outcome.exception else outcome.get_result()),
    )
    try:
        yield
    finally:
        undo()


@contextmanager
def changed_arguments(subject: Subject) -> Iterator[list[tuple[str, str]]]:
    """Fill the list with `(hook, argument)` for each argument that a hook wrote into, `inputs_embeds` excepted."""
    found: list[tuple[str, str]] = []
    earlier: dict[int, dict[str, Any]] = {}

    def contents(given: Arguments) -> dict[str, Any]:
        return {name: content(value) for name, value in given.items() if name != "inputs_embeds"}

    def before(hook: str, given: Arguments) -> None:
        earlier[id(given)] = contents(given)

    def after(hook: str, given: Arguments, result: Any) -> None:
        kept = earlier.pop(id(given))
        found.extend((hook, name) for name, value in contents(given).items() if value != kept[name])

    with listening(subject, before, after):
        yield found


@dataclass(frozen=True)
class Seen:
    """A value that a hook was given or returned, without keeping it alive."""

    name: str
    """What it is: `pixel_values of call_hf_processor`."""
    is_alive: Callable[[], bool]
    """Whether its memory is still there, be it under another tensor."""


@contextmanager
def seen(subject: Subject) -> Iterator[list[Seen]]:
    """Fill the list with the tensors, arrays and media that hooks are given and return inside."""
    found: list[Seen] = []

    def after(hook: str, given: Arguments, result: Any) -> None:
        if hook in ("call_hf_processor", "get_multimodal_embeddings"):
            values = {name: value for name, value in given.items() if name in ("mm_data", "mm_kwargs")}
            found.extend(_seen({**values, "results": result}, hook))

    with listening(subject, lambda *_: None, after):
        yield found


def _seen(value: Any, name: str) -> Iterator[Seen]:
    if is_tensor(value):
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = StorageWeakRef(value.untyped_storage())  # type: ignore[no-untyped-call]
        yield Seen(name, lambda: not storage.expired())  # type: ignore[no-untyped-call]
    elif is_array(value) or is_image(value) or isinstance(value, Video):
        reference = weakref.ref(value)
        yield Seen(name, lambda: reference() is not None)
    elif isinstance(value, Mapping):
        for key, element in value.items():
            yield from _seen(element, f"{key} of {name}")
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from _seen(element, name)


@contextmanager
def memory_growth() -> Iterator[Callable[[], int]]:
    """Collect garbage; give a function that says by how many bytes tensors and arrays have grown since.

    What is alive at the start is looked through once, and left out of collections inside: it is millions of objects.
    """
    frozen, traced = gc.get_freeze_count(), tracemalloc.is_tracing()
    gc.unfreeze()  # what was imported early may hold tensors
    gc.collect()
    old = [weakref.ref(tensor) for tensor in _tensors()]
    gc.freeze()
    before = _bytes_of(old)
    if not traced:
        tracemalloc.start()
    known = _bytes_of_arrays()

    def grown() -> int:
        gc.collect()
        new = [weakref.ref(tensor) for tensor in _tensors()]
        return _bytes_of([*old, *new]) - before + _bytes_of_arrays() - known

    try:
        yield grown
    finally:
        if not traced:
            tracemalloc.stop()
        if not frozen:
            gc.unfreeze()


def _tensors() -> Iterator[Any]:
    """Yield the tensors that Python's collector knows and has not frozen."""
    import torch

    values = gc.get_objects()
    # types of their own, not those of what proxies stand for, which may be gone
    kinds = {kind for kind in set(map(type, values)) if issubclass(kind, torch.Tensor)}
    return compress(values, map(kinds.__contains__, map(type, values)))


def _bytes_of(tensors: Iterable[weakref.ref[Any]]) -> int:
    """Return the bytes of those that are alive, shared ones once."""
    import torch

    alive = [tensor for tensor in (reference() for reference in tensors) if tensor is not None]
    storages = [x.untyped_storage() for x in alive if x.layout == torch.strided and x.device.type != "meta"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _bytes_of_arrays() -> int:
    """Return the bytes of NumPy's arrays that are alive and were made while memory is traced."""
    import numpy as np

    arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([arrays]).traces)

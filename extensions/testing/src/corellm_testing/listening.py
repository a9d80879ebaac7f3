"""Listens to a loaded model's hooks: what they are given and return, whether they write into it or keep it.

Knows pluggy and the kinds of values that hooks have; knows no rule.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
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


def bytes_alive(*, again: bool = False) -> int:
    """Return the bytes of all tensors and arrays of this process that Python's collector reaches.

    Args:
        again: soon after another call: what was alive then and is garbage now may count, and need not be looked for.
    """
    import numpy as np
    import torch

    frozen = gc.get_freeze_count()
    if again:
        gc.collect()  # of what is not frozen
    gc.unfreeze()  # what was imported early may hold them
    if not again:
        gc.collect()
    values = gc.get_referents(*gc.get_objects())  # millions
    if frozen:
        gc.freeze()
    # types of their own, not those of what proxies stand for, which may be gone
    kinds = {kind for kind in set(map(type, values)) if issubclass(kind, (np.ndarray, torch.Tensor))}
    memory: dict[int, int] = {}
    for value in compress(values, map(kinds.__contains__, map(type, values))):
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided and value.device.type != "meta":
                memory[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif value.base is None:
            memory[id(value)] = value.nbytes
    return sum(memory.values())

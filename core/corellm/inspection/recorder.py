"""Listens to a model's hooks: which were called, what they answered or raised, and how long they took.

An extension like anybody's (`wrap_adapter`), so it sees what the engine sees. Knows no stage and no report.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from corellm.hookspecs import STATIC_HOOKS, ModelContext, hookimpl
from corellm.plugin.contract import CONTRACT
from corellm.plugin.extensions import load_extensions


@dataclass(frozen=True)
class Call:
    """One call of one hook."""

    hook: str
    start: float
    seconds: float
    answer: Any = None
    error: str | None = None


@dataclass
class Recorder:
    """Every call so far, by when it ended."""

    calls: list[Call] = field(default_factory=list)
    context: ModelContext | None = None
    """The adapter's, once there is one."""

    @hookimpl
    def wrap_adapter(self, context: ModelContext) -> Any:
        """Surround the adapter."""
        self.context = context
        return _Listener(self.calls)

    def last(self, hook: str, since: int = 0) -> Call | None:
        """The last call of a hook among those from number `since`."""
        return next((call for call in reversed(self.calls[since:]) if call.hook == hook), None)


class _Listener:
    """The wrapper; its methods are made below, one for each hook."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls


def _listening_to(hook: str) -> Any:
    def listen(self: _Listener) -> Generator[None, Any, Any]:
        start = time.perf_counter()
        try:
            answer = yield
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.calls.append(Call(hook, start, time.perf_counter() - start, error=message))
            raise
        self.calls.append(Call(hook, start, time.perf_counter() - start, answer))
        return answer

    return hookimpl(wrapper=True, tryfirst=True)(listen)


for _hook in CONTRACT.hooks - set(STATIC_HOOKS):
    setattr(_Listener, _hook, _listening_to(_hook))


@contextmanager
def recording() -> Iterator[Recorder]:
    """Listen to models loaded meanwhile.

    Raises:
        PluginError: an extension is broken.
    """
    extensions = load_extensions()
    recorder = Recorder()
    extensions.register(recorder)
    try:
        yield recorder
    finally:
        extensions.unregister(recorder)

"""Records calls of a model's hooks: names, results or errors, and times.

An extension like any other (`wrap_adapter`), so it sees what the engine sees. Knows no stage and no report.
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
    result: Any = None
    error: str | None = None


@dataclass
class Recorder:
    """All calls so far, in the order in which they ended."""

    calls: list[Call] = field(default_factory=list)
    context: ModelContext | None = None
    """The adapter's context; None until the adapter is made."""

    @hookimpl
    def wrap_adapter(self, context: ModelContext) -> Any:
        """Return the wrapper that records the adapter's calls."""
        self.context = context
        return _Listener(self.calls)

    def last(self, hook: str, since: int = 0) -> Call | None:
        """Return the last call of a hook, ignoring the first `since` calls of any hook."""
        return next((call for call in reversed(self.calls[since:]) if call.hook == hook), None)


class _Listener:
    """The wrapper; the loop below gives it a method for each hook."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls


def _listening_to(hook: str) -> Any:
    def listen(self: _Listener) -> Generator[None, Any, Any]:
        start = time.perf_counter()
        try:
            result = yield
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.calls.append(Call(hook, start, time.perf_counter() - start, error=message))
            raise
        self.calls.append(Call(hook, start, time.perf_counter() - start, result))
        return result

    return hookimpl(wrapper=True, tryfirst=True)(listen)


for _hook in CONTRACT.hooks - set(STATIC_HOOKS):
    setattr(_Listener, _hook, _listening_to(_hook))


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record the hook calls of models loaded inside.

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

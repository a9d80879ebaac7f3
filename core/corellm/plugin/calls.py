"""Methods of `LLM` and `AsyncLLM` that extensions bring. Knows the hook, and no method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

from corellm.errors import AbsentMethodError, install_hint
from corellm.plugin.extensions import call_extensions

_Result = TypeVar("_Result")


class CallOfExtension(Generic[_Result]):
    """A method that an extension brings (`offer_calls`).

    Args:
        folder: of the extension, for the message where there is none.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, llm: None, owner: type) -> Self: ...

    @overload
    def __get__(self, llm: object, owner: type) -> Callable[..., _Result]: ...

    def __get__(self, llm: Any, owner: type) -> Any:
        if llm is None:
            return self
        for _, calls in call_extensions("offer_calls", lambda calls: True, llm=llm):
            if hasattr(calls, self._name):
                return getattr(calls, self._name)
        raise self.absent()

    def absent(self) -> AbsentMethodError:
        """Return the error where no extension brings the method."""
        return AbsentMethodError(f"LLM.{self._name} comes with {install_hint(self._folder)}")

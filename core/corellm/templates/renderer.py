"""Renders templates in child processes, within one time limit per conversation.

Knows nothing of messages. Any thread may render; two conversations render at once, others wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from corellm.children.child import Child, ChildError, ChildTimeoutError, RefusedError
from corellm.errors import ProcessingError, PromptError

RENDER_SECONDS = 4.0
"""Time limit for everything rendered for one conversation."""

MAX_CHARS = 1 << 25
"""Longest text a template may render to."""

_MAX_MESSAGE = 600
"""Longest error message: a template can put the whole conversation into one."""

Render = Callable[[str, Mapping[str, Any]], str]
"""From `(template, variables)` to the text."""


class TemplateRefusalError(PromptError):
    """The template raised; it may accept the same conversation in another form."""


class TemplateRenderer:
    """Renders templates in child processes, which are started when first needed.

    Args:
        seconds: time limit for everything rendered in one `session`; then the child is killed.
        max_chars: the longest text.
    """

    def __init__(self, seconds: float = RENDER_SECONDS, max_chars: int = MAX_CHARS) -> None:
        self._seconds, self._max_chars = seconds, max_chars
        self._first, self._second = ((threading.Lock(), Child("corellm.templates.worker")) for _ in range(2))

    @contextmanager
    def session(self) -> Iterator[Render]:
        """Give a function that renders for one conversation; its time starts with its first call.

        Raises:
            TemplateRefusalError: in the function: the template raised or is malformed.
            PromptError: in the function: the template takes too long, or cannot take these variables.
            ProcessingError: in the function: the child cannot be started or died.
        """
        lock, child = self._second if self._first[0].locked() else self._first
        with lock:
            yield self._renders_in(child)

    def close(self) -> None:
        """End the child processes; rendering again would start new ones."""
        for lock, child in (self._first, self._second):
            if lock.acquire(blocking=False):
                child.kill()
                lock.release()
            else:
                child.interrupt()

    def _renders_in(self, child: Child) -> Render:
        deadline: float | None = None

        def render(template: str, variables: Mapping[str, Any]) -> str:
            nonlocal deadline
            request = {"template": template, "variables": variables, "max_chars": self._max_chars}
            try:
                child.start()
                if deadline is None:
                    deadline = time.monotonic() + self._seconds
                text: str = child.call(request, deadline - time.monotonic())
            except RefusedError as error:
                message = f"the chat template does not take this conversation: {error}"
                raise TemplateRefusalError(message[:_MAX_MESSAGE]) from None
            except ChildTimeoutError as error:
                raise PromptError(
                    f"the chat template does not end within {self._seconds:g} s for this conversation; "
                    "shorten it, or mend the template"
                ) from error
            except (TypeError, ValueError, RecursionError) as error:  # not JSON, such as a number of too many digits
                raise PromptError(f"a chat template cannot be given this conversation: {error}") from error
            except (ChildError, OSError) as error:
                raise ProcessingError(f"the process that renders chat templates failed: {error}") from error
            return text

        return render

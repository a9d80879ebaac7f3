"""Renders templates in child processes, within one time limit per conversation.

Knows nothing of messages. Any thread may render; two conversations render at once, others wait. While others wait, one
that takes long is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from corellm.children.child import Child, ChildError, ChildTimeoutError, RefusedError
from corellm.children.pool import BusyError, ChildPool, ClosedError
from corellm.errors import ProcessingError, PromptError

RENDER_SECONDS = 4.0
"""Time limit for everything rendered for one conversation."""
PATIENCE_SECONDS = 2.0
"""The same while another conversation waits: a template takes milliseconds."""
_WAIT_SECONDS = 60.0
"""How long a conversation waits for its turn."""

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
        patience: time limit while another session waits.
    """

    def __init__(
        self, seconds: float = RENDER_SECONDS, max_chars: int = MAX_CHARS, patience: float = PATIENCE_SECONDS
    ) -> None:
        self._seconds, self._max_chars, self._patience = seconds, max_chars, min(seconds, patience)
        self._children = ChildPool(2, "corellm.templates.worker", patience=self._patience)

    @contextmanager
    def session(self) -> Iterator[Render]:
        """Give a function that renders for one conversation; its time starts with its first call.

        Raises:
            TemplateRefusalError: in the function: the template raised or is malformed.
            PromptError: in the function: the template takes too long, or cannot take these variables.
            ProcessingError: in the function: the child cannot be started or died; or no child is free for a minute, or
                the renderer was closed.
        """
        try:
            with self._children.lend(_WAIT_SECONDS) as child:
                yield self._renders_in(child)
        except BusyError:
            raise ProcessingError(f"no process that renders chat templates was free for {_WAIT_SECONDS:g} s") from None
        except ClosedError:
            raise ProcessingError("chat templates are not rendered any more: the engine was shut down") from None

    def close(self) -> None:
        """End the child processes; nothing is rendered any more."""
        self._children.close()

    def _renders_in(self, child: Child) -> Render:
        deadline: float | None = None

        def render(template: str, variables: Mapping[str, Any]) -> str:
            nonlocal deadline
            request = {"template": template, "variables": variables, "max_chars": self._max_chars}
            try:
                child.start()
            except (ChildError, OSError) as error:
                raise ProcessingError(f"the process that renders chat templates did not start: {error}") from error
            try:
                if deadline is None:
                    deadline = time.monotonic() + self._seconds
                text: str = child.call(request, deadline - time.monotonic())
            except RefusedError as error:
                message = f"the chat template does not take this conversation: {error}"
                raise TemplateRefusalError(message[:_MAX_MESSAGE]) from None
            except ChildTimeoutError as error:
                raise PromptError(
                    f"the chat template does not end within {self._seconds:g} s for this conversation, or within "
                    f"{self._patience:g} s while others wait; shorten it, or mend the template"
                ) from error
            except (TypeError, ValueError, RecursionError) as error:  # not JSON, such as a number of too many digits
                raise PromptError(f"a chat template cannot be given this conversation: {error}") from error
            except (ChildError, OSError) as error:
                raise ProcessingError(f"the process that renders chat templates failed: {error}") from error
            return text

        return render

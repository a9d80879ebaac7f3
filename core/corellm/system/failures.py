"""Turns an error in one request's own stage into that request's failure."""

from __future__ import annotations

import logging
import traceback

from corellm.errors import CorellmError, raised_at

logger = logging.getLogger(__name__)


def failure_of(stage: str, error: Exception, kind: type[CorellmError], *, level: int = logging.ERROR) -> CorellmError:
    """Return a typed error as it is, another one as the cause of a typed error that names the stage.

    Callers may keep the error for long, and its frames would keep the model and the step's tensors alive: they are
    dropped, and a note says where it was raised.

    Args:
        stage: of the request.
        error: raised there.
        kind: of the typed error.
        level: at which an error that is not typed is logged.
    """
    is_typed = isinstance(error, CorellmError)
    logger.log(logging.DEBUG if is_typed else level, "%s failed", stage, exc_info=error)
    if isinstance(error, CorellmError):
        failure = error
    else:
        failure = kind(f"{stage} failed with {type(error).__name__}: {error} ({raised_at(error)})")
        failure.__cause__ = error
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
    _forget_frames(failure)
    return failure


def _forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error, its causes and its contexts."""
    known: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in known:
            known.add(id(link))
            link.__traceback__ = None
            chain += [link.__cause__, link.__context__]

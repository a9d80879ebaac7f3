"""What becomes of an error in one request's own stage."""

from __future__ import annotations

import logging
import traceback

from corellm.errors import CorellmError, raised_at

logger = logging.getLogger(__name__)


def failure_of(stage: str, error: Exception, kind: type[CorellmError]) -> CorellmError:
    """A typed error as it is, another one as the cause of a typed one that names the stage.

    The error may be kept for long, and with its frames it would keep the model and the tensors of everybody's step: it
    comes back without, and says in a note where it was raised.
    """
    if isinstance(error, CorellmError):
        logger.debug("%s failed", stage, exc_info=error)
        failure = error
    else:
        logger.error("%s failed", stage, exc_info=error)
        failure = kind(f"{stage} failed with {type(error).__name__}: {error} ({raised_at(error)})")
        failure.__cause__ = error
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
    _forget_frames(failure)
    return failure


def _forget_frames(error: BaseException) -> None:
    """Of an error and of everything behind it."""
    known: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in known:
            known.add(id(link))
            link.__traceback__ = None
            chain += [link.__cause__, link.__context__]

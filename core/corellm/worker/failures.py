"""What becomes of an error in one request's own stage."""

from __future__ import annotations

import logging
import traceback

from corellm.errors import CorellmError, raised_at

logger = logging.getLogger(__name__)


def failure_of(stage: str, error: Exception, kind: type[CorellmError]) -> CorellmError:
    """A typed error as it is, another one as the cause of a typed one that names the stage.

    However long the error is kept, the tensors of the frames that it came through are not.
    """
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, CorellmError):
        return error
    logger.error("%s failed", stage, exc_info=error)
    failure = kind(f"{stage} failed with {type(error).__name__}: {error} ({raised_at(error)})")
    failure.__cause__ = error
    return failure

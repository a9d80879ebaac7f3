"""What an extension reads: audio, and videos in files. Knows who offers it, no formats."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from corellm.errors import MissingExtraError, install_hint
from corellm.media.pool import IMAGE_WORKER
from corellm.plugin.extensions import call_extensions

if TYPE_CHECKING:
    import numpy as np

    from corellm.config import MultiModalConfig
    from corellm.media.pool import MediaPool
    from corellm.media.video import Video


class MediaReader(Protocol):
    """What `offer_media_reader` returns. Its methods are called in any thread, and raise `MediaError`."""

    worker: str
    """Module that child processes run to decode: it runs a subclass of `corellm.media.worker.Worker`."""

    def load_audio(
        self, source: Any, sampling_rate: int, max_seconds: float, formats: Collection[str], pool: MediaPool | None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return audio in any form as mono samples, `[num_samples]`, at `sampling_rate`."""
        ...

    def load_video(self, source: Any, limits: MultiModalConfig, pool: MediaPool | None) -> Video:
        """Return the video of a path, or of a file's bytes."""
        ...


def media_reader(what: str) -> MediaReader:
    """Return the first reader that an extension offers.

    Raises:
        MissingExtraError: none does; begins with `what` was to be read.
    """
    found = _offered()
    if found is None:
        raise MissingExtraError(f"{what} needs {install_hint('media')}")
    return found


def worker_module() -> str:
    """Return the module that child processes run to decode media."""
    found = _offered()
    return IMAGE_WORKER if found is None else found.worker


def _offered() -> MediaReader | None:
    return next((offer for _, offer in call_extensions("offer_media_reader", _is_reader)), None)


def _is_reader(result: Any) -> bool:
    return isinstance(getattr(result, "worker", None), str) and hasattr(result, "load_audio")

"""What the engine asks to read audio, and videos in files. Imports what reads them when the first is read."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from corellm.config import MultiModalConfig
    from corellm.media.pool import MediaPool
    from corellm.media.video import Video


class Reader:
    """A `corellm.multimodal.media_reader.MediaReader`."""

    worker = "corellm_media.worker"

    def load_audio(
        self, source: Any, sampling_rate: int, max_seconds: float, formats: Collection[str], pool: MediaPool | None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Do as `audio.load_audio`."""
        from corellm_media.audio import load_audio

        return load_audio(source, sampling_rate, max_seconds, formats, pool)

    def load_video(self, source: Any, limits: MultiModalConfig, pool: MediaPool | None) -> Video:
        """Do as `video.files.load_video`."""
        from corellm_media.video.files import load_video

        return load_video(source, limits, pool)

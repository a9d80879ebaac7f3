"""What the core calls: it has a reader of audio and of video files here."""

from __future__ import annotations

from corellm.hookspecs import hookimpl
from corellm_media.reader import Reader


class MediaFiles:
    """The extension."""

    @hookimpl
    def offer_media_reader(self) -> Reader:
        """Offer to read audio, and videos in files."""
        return Reader()

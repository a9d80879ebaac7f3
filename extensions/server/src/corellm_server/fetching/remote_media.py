"""Fetching of media that a conversation names by URL, in Python; a server does it in `media_sources`.

Knows normalized messages and whom to ask; what may be fetched is known to the settings. Imported only where hosts are
allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from corellm.errors import MediaError, ProcessingError
from corellm.fetch_settings import FetchSettings
from corellm.media.files import is_remote
from corellm.multimodal.chat.messages import media_parts
from corellm.multimodal.items import name_item_in_errors
from corellm_server.fetching.fetch_thread import CLOSED, FetchThread
from corellm_server.fetching.fetcher import Fetcher

MOST_URLS = 256
"""Most URLs of a conversation: all files are in memory until the last download ends."""


class RemoteMedia:
    """Replaces URLs in conversations by the files. Safe to call from several threads, which wait.

    Args:
        settings: what is allowed.
    """

    def __init__(self, settings: FetchSettings) -> None:
        self._thread = FetchThread(Fetcher(settings))

    def load(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Replace the URLs in all parts of normalized messages. The first that fails, in order, cancels the others.

        Raises:
            MediaError: it names the item; or there are too many.
            ProcessingError: the engine was shut down meanwhile.
        """
        num_remote = sum(_is_remote(part) for part in media_parts(messages))
        if num_remote > MOST_URLS:
            raise MediaError(f"the conversation has {num_remote} URLs, {MOST_URLS} are allowed; send fewer turns")
        begun: list[tuple[Any, str, int, Future[bytes]]] = []
        counts: Counter[str] = Counter()
        try:
            for part in media_parts(messages):
                modality = part["type"]
                if _is_remote(part):
                    download = self._thread.begin(part[modality], kind=modality)
                    begun.append((part, modality, counts[modality], download))
                counts[modality] += 1
            for part, modality, item, download in begun:
                with name_item_in_errors(modality, item):
                    part[modality] = download.result()
        except CancelledError as error:
            raise ProcessingError(CLOSED) from error
        finally:
            for _, _, _, download in begun:
                download.cancel()

    def close(self) -> None:
        """Cancel what is being fetched; fetch no more."""
        self._thread.close()


def _is_remote(part: Mapping[str, Any]) -> bool:
    media = part[part["type"]]
    return isinstance(media, str) and is_remote(media)

"""Media that requests name: `data:` URLs pass, files come from the operator's directory, URLs through the fetcher.

What was named becomes bytes here, so that nothing behind it ever sees a path or a URL of a client.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from corellm.errors import MediaError
from corellm.media.files import is_remote, read_file
from corellm.multimodal.chat.reading import Part
from corellm.multimodal.items import GivenEmbeddings
from corellm_server.embeddings import read_embeddings
from corellm_server.errors import ApiError
from corellm_server.files_below import opened_below
from corellm_server.tasks import all_results

_LONGEST_NAME = 4096
_MAX_FETCHED = 64 << 20
_BYTES_OF_ENTRY = 512
"""Bytes that an entry costs beside its URL and content."""


class Fetcher(Protocol):
    """Fetches what the operator allows."""

    async def fetch(self, url: str, *, kind: str) -> bytes:
        """The bytes of a URL; raises a `MediaError` that says why not."""

    async def close(self) -> None:
        """Close what is open."""


class FetchedMedia:
    """What was fetched for conversations that are kept, until it gives way to what was used later.

    Args:
        max_bytes: of all of it, and of the URLs: a client may name many that have little.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._contents: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        """Contents by owner and URL, the one that was used last at the end."""

    def get(self, owner: str, url: str) -> bytes | None:
        """What an owner's URL had; None if it is not there any more."""
        content = self._contents.get((owner, url))
        if content is not None:
            self._contents.move_to_end((owner, url))
        return content

    def put(self, owner: str, url: str, content: bytes) -> None:
        """Take what an owner's URL has now."""
        if (before := self._contents.pop((owner, url), None)) is not None:
            self._num_bytes -= _size(url, before)
        self._contents[owner, url] = content
        self._num_bytes += _size(url, content)
        while self._num_bytes > self._max_bytes:
            (_, oldest), had = self._contents.popitem(last=False)
            self._num_bytes -= _size(oldest, had)


def _size(url: str, content: bytes) -> int:
    return len(url) + len(content) + _BYTES_OF_ENTRY


class MediaSources:
    """Replaces names of media by their bytes.

    Args:
        root: directory whose files requests may name; None for no files.
        fetcher: fetches URLs; None for no URLs.
        takes_embeddings: whether requests may have precomputed embeddings.
    """

    def __init__(self, root: str | None, fetcher: Fetcher | None, *, takes_embeddings: bool = False) -> None:
        self._takes_embeddings = takes_embeddings
        self._root = None if root is None else Path(root).resolve()
        self._fetcher = fetcher
        self._fetched = FetchedMedia(_MAX_FETCHED)

    async def load(self, sources: Sequence[Part], owner: str | None = None, earlier: str = "") -> None:
        """Replace the names in all parts; the first failure cancels the others.

        Args:
            sources: the parts.
            owner: of the conversation, if that is kept: its next turns need not fetch again.
            earlier: what the places of parts of its earlier turns begin with.

        Raises:
            ApiError: names the part.
        """
        await all_results(self._load(source, owner, earlier) for source in sources if _needs_loading(source))

    async def _load(self, source: Part, owner: str | None, earlier: str) -> None:
        try:
            if source.are_embeddings:
                source.value = await self._embeddings(source)
            elif owner is None or not is_remote(source.value):
                source.value = await self._content(source)
            else:
                found = self._fetched.get(owner, source.value) if source.where.startswith(earlier) else None
                content = await self._content(source) if found is None else found
                self._fetched.put(owner, source.value, content)
                source.value = content
        except MediaError as error:
            raise ApiError(error.status, f"{source.where}: {error}", param=source.where) from error

    async def _embeddings(self, source: Part) -> GivenEmbeddings:
        if not self._takes_embeddings:
            raise MediaError(
                f"type '{source.modality}_embeds': this server takes no precomputed embeddings; send the "
                f"{source.modality} itself, or start it with --enable-mm-embeds"
            )
        return await asyncio.to_thread(read_embeddings, source.value or "")

    async def _content(self, source: Part) -> bytes:
        name = source.value or ""
        if is_remote(name):
            if self._fetcher is None:
                raise MediaError(
                    "URLs are not fetched by this server: send a data: URL, or start it with --allowed-media-domains"
                )
            return await self._fetcher.fetch(name, kind=source.modality)
        if self._root is None:
            raise MediaError(
                "files are not read by this server: send a data: URL (data:image/png;base64,...), or start it with "
                "--allowed-local-media-path"
            )
        return await asyncio.to_thread(read_below, self._root, name)


def read_below(root: Path, name: str) -> bytes:
    """The content of a regular file in a directory; symbolic links must not lead out of it.

    Args:
        root: the directory, resolved.
        name: a `file:` URL or a path, absolute or relative to `root`.

    Raises:
        MediaError: no such file in there; says nothing of what is elsewhere.
    """
    refused = MediaError("there is no such file in the directory that this server reads")
    if name[:5].lower() == "file:":
        name = unquote(name[5:])
        host, slash, path = name.removeprefix("//").partition("/") if name.startswith("//") else ("", "", name)
        if host.lower() not in ("", "localhost"):
            raise MediaError("a file: URL is file:// and an absolute path")
        name = slash + path
    if len(name) > _LONGEST_NAME or "\0" in name:
        raise MediaError("this is neither a URL nor a path; base64 data are sent as data:image/png;base64,...")
    try:
        with opened_below(root, name) as file:
            return bytes(read_file(f"/dev/fd/{file.fileno()}"))
    except (OSError, RuntimeError, ValueError, MediaError):  # also loops of links, and what is not in there
        raise refused from None


def _needs_loading(source: Part) -> bool:
    return source.are_embeddings or (source.value is not None and source.value[:5].lower() != "data:")

"""A video file to a `Video`. `integrity` says which container it is, `container` and `gif` decode it."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from corellm.errors import MediaError
from corellm.media.files import check_format, open_regular_file, shown_path
from corellm.media.frames import check_bytes
from corellm.media.video import Video, VideoMetadata

if TYPE_CHECKING:
    from corellm.config import MultiModalConfig
    from corellm.media.pool import MediaPool
    from corellm_media.pooled_video import PooledVideo
    from corellm_media.video.container import EncodedVideo
    from corellm_media.video.gif import GifVideo

_FORMATS = {"mov": "mp4", "matroska": "mkv"}
"""Containers whose name in `config.MEDIA_FORMATS` differs from FFmpeg's."""


def load_video(source: Any, limits: MultiModalConfig, pool: MediaPool | None = None) -> Video:
    """Return the video of a file: all frames are counted, but only the first is decoded.

    Args:
        source: the path of a regular file, or its bytes.
        limits: those named `max_video_` count.
        pool: decodes files; None to decode them in this process.

    Raises:
        MediaTooLargeError: more bytes, pixels or frames.
        MediaError: no such file, no video, broken, truncated, empty.
        MediaTimeoutError: the pool's time is up.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        check_bytes(memoryview(source).nbytes, limits.max_video_bytes)
        return _from_file(bytes(source), limits, pool, "the video")
    with open_regular_file(source) as stream:
        check_bytes(os.fstat(stream.fileno()).st_size, limits.max_video_bytes)
        data = stream.read(limits.max_video_bytes + 1)
    check_bytes(len(data), limits.max_video_bytes)  # the file may have grown
    return _from_file(data, limits, pool, shown_path(source))


def _from_file(data: bytes, limits: MultiModalConfig, pool: MediaPool | None, name: str) -> Video:
    if not data:
        raise MediaError(f"{name} is empty (0 bytes)")
    from corellm_media.video.integrity import identify

    container = identify(data)
    if container is None:
        raise MediaError(f"{name} is not an MP4, MOV, MKV, WebM, AVI, MPEG-TS or GIF video")
    check_format(_FORMATS.get(container, container), name, limits.media_formats)
    try:
        source = open_frames(data, container, limits) if pool is None else _pooled(pool, data, container, limits)
    except MediaError as error:
        error.args = (f"{name} {error}",)
        raise
    metadata = VideoMetadata(
        total_num_frames=len(source.times),
        fps=source.fps,
        width=source.width,
        height=source.height,
        duration=source.duration,
    )
    content = ("file", hashlib.sha256(data).digest())
    return Video(source, metadata, max_frames=limits.max_video_frames, content=content)


def _pooled(pool: MediaPool, data: bytes, container: str, limits: MultiModalConfig) -> PooledVideo:
    from corellm_media.pooled_video import PooledVideo

    return PooledVideo(pool, data, container, limits)


def open_frames(data: bytes, container: str, limits: MultiModalConfig) -> EncodedVideo | GifVideo:
    """Return the frames of a file in memory, decoded in this process.

    Args:
        data: the whole file.
        container: from `integrity.identify`.
        limits: as for `load_video`.

    Raises:
        MediaError: as `load_video`; the message begins with a verb.
    """
    if container == "gif":
        from corellm_media.video.gif import GifVideo

        return GifVideo(data, limits)
    from corellm_media.video.container import EncodedVideo

    return EncodedVideo(data, container, limits)

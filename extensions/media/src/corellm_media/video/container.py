"""One encoded video in memory: its frames and their times, decoded by FFmpeg (PyAV).

Knows containers and decoders, not the forms or metadata that users give. A file is opened as the one format its
signature says. Frames are as a viewer shows them:

- frames are turned and mirrored by the display matrix (phones), transparency becomes white, and frames of another size
  than the first, as in live recordings, are scaled to it;
- edit lists apply;
- pixels are taken to be square, and colours of more than 8 bits become 8 bits without tone mapping.

Containers state the time of each frame, except AVI and files whose clock stands still: there frames are numbered in the
order of decoder output.

The whole file stays in memory, so seeking means to skip packets: a decoder starts at a key frame that needs nothing
before it, and where none is known, at the start. The frames are the same either way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import av
import numpy as np

from corellm.errors import MediaError
from corellm_media.containers import open_container
from corellm_media.video.bounds import PixelBudget, check_packets, check_size
from corellm_media.video.codec import DECODERS, INTRA_ONLY, STRICT, is_entry, is_shown
from corellm_media.video.frame import Orientation, to_rgb
from corellm_media.video.index import PacketInfo, Stretch
from corellm_media.video.integrity import BROKEN, check_whole
from corellm_media.video.timeline import Timeline

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    from corellm.config import MultiModalConfig

_THREADS = 2  # per decoder; several videos may be read at once


class _NotAnEntryError(Exception):
    """Decoding cannot begin at a packet that is flagged as a key frame."""


class EncodedVideo:
    """The frames of one file, numbered in the order they are shown. Immutable; any thread may read it.

    The constructor reads all packets and decodes the first frame only.

    Attributes:
        width, height: of every frame, upright.
        times: when each frame is shown, seconds from the first.
        duration: seconds, the last frame's included; None if a single frame has none.
        fps: the container's rate if the times agree with it, else their average; None without duration.

    Args:
        data: the whole file.
        container: "mov", "matroska", "avi" or "mpegts", from `integrity.identify`.
        limits: `max_video_pixels` (of a frame) and `max_video_decoded_pixels` (of one reading) count.

    Raises:
        MediaTooLargeError: larger frames, more of them than `bounds.MAX_PACKETS`, or too much to decode for the first.
        MediaError: broken, truncated, without video, or of a codec that is not supported.
    """

    def __init__(self, data: bytes, container: str, limits: MultiModalConfig) -> None:
        self._format = container
        self._data = data
        check_whole(data, container)
        self._max_pixels = limits.max_video_pixels
        self._max_decoded_pixels = limits.max_video_decoded_pixels
        self._keeps_time = container != "avi"
        timeline = self._read_timeline()
        if timeline.stands_still():
            self._keeps_time = False  # so its edit list does not apply either
            timeline = self._read_timeline().evenly()
        self._index = timeline.index() if self._keeps_time else timeline.index_in_order()
        self.times = timeline.times(self._index, by_number=not self._keeps_time)
        self.duration, self.fps = timeline.duration_and_rate(self.times)
        self._size = 0, 0  # until the first frame is decoded
        with closing(self._decode([0])) as frames:
            first = next(frames)
        self._orientation = Orientation(first)
        self._size = first.width, first.height
        self.width, self.height = self._size[::-1] if self._orientation.transposes else self._size

    def _read_timeline(self) -> Timeline:
        with self._open() as (opened, stream):
            return _timeline(opened, stream, self._format)

    def read(self, numbers: Sequence[int]) -> Iterator[np.ndarray[Any, Any]]:
        """The frames `numbers` (ascending, each once), each decoded on demand.

        Yields:
            `[height, width, 3]` uint8 RGB.

        Raises:
            MediaTooLargeError: too much to decode for them.
            MediaError: one of them cannot be decoded.
        """
        for number, frame in zip(numbers, self._decode(numbers), strict=True):
            try:
                pixels = to_rgb(frame, *self._size)
            except (av.FFmpegError, OSError) as error:  # a pixel format that cannot be converted
                self._fail(number, error)
            yield np.array(self._orientation.apply(pixels), order="C")  # not FFmpeg's own memory

    def _decode(self, numbers: Sequence[int]) -> Generator[VideoFrame]:
        budget = PixelBudget(self._max_decoded_pixels)
        done = 0
        try:
            for frame in self._run(self._index.stretches(numbers), budget):
                done += 1
                yield frame
        except _NotAnEntryError:
            yield from self._run(self._index.from_the_start(numbers[done:]), budget)

    def _run(self, stretches: Sequence[Stretch], budget: PixelBudget) -> Iterator[VideoFrame]:
        with self._open() as (opened, stream):
            decoder = stream.codec_context
            budget.check(sum(stretch.num_packets for stretch in stretches) * self._pixels(decoder))
            packets = _numbered_packets(opened, stream)
            for stretch in stretches:
                frames = self._frames_of(stretch, decoder, packets, budget)
                yield from self._pick(stretch, frames if self._keeps_time else _numbered(frames, stretch.first))
                decoder.flush_buffers()

    def _pick(self, stretch: Stretch, decoded: Iterator[VideoFrame]) -> Iterator[VideoFrame]:
        """Yield the frames wanted of all that a stretch decodes to."""
        pts = self._index.pts
        waiting = deque(stretch.frames)
        entered = stretch.must_begin_at is None
        try:
            for frame in decoded:
                if not entered and not (frame.key_frame and frame.pts == stretch.must_begin_at):
                    raise _NotAnEntryError
                entered = True
                if frame.pts is None or frame.pts < pts[waiting[0]]:
                    continue
                if frame.pts > pts[waiting[0]] or frame.is_corrupt:
                    break
                check_size(frame.width, frame.height, self._max_pixels)
                yield frame
                waiting.popleft()
                if not waiting:
                    return
        except av.FFmpegError as error:
            if not entered:
                raise _NotAnEntryError from error
            self._fail(waiting[0], error)
        self._fail(waiting[0])

    def _frames_of(
        self,
        stretch: Stretch,
        decoder: VideoCodecContext,
        packets: Iterator[tuple[int, Packet[VideoStream]]],
        budget: PixelBudget,
    ) -> Iterator[VideoFrame]:
        """Skip the packets before a stretch, decode it, and flush the decoder."""
        for number, packet in packets:
            if number >= stretch.first:
                budget.spend(self._pixels(decoder))  # also if the packet turns out to give no frame
                yield from decoder.decode(packet)
            if number == stretch.last:
                break
        yield from decoder.decode(None)

    def _pixels(self, decoder: VideoCodecContext) -> int:
        """Pixels of the next frame: those of the first or of the decoder's current size, whichever is more."""
        return max(math.prod(self._size), decoder.width * decoder.height)

    def _fail(self, number: int, error: Exception | None = None) -> NoReturn:
        raise MediaError(f"frame {number} (at {self.times[number]:.2f} s) cannot be decoded") from error

    @contextmanager
    def _open(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        """The container and its video stream, checked; closed afterwards, also when a reader stops early."""
        options = {"ignore_editlist": "1"} if self._format == "mov" and not self._keeps_time else {}
        # Twice the pixels: FFmpeg counts padding. Frames are checked again one by one.
        limits = {"codec_whitelist": ",".join(DECODERS), "max_pixels": str(2 * self._max_pixels)}
        try:
            with open_container(self._data, self._format, options) as opened:
                stream = _video_stream(opened)
                check_size(stream.codec_context.width, stream.codec_context.height, self._max_pixels)
                for other in opened.streams:
                    if other.index != stream.index:
                        other.discard = av.stream.Discard.all
                decoder = stream.codec_context
                decoder.options = limits | ({"err_detect": "crccheck+explode"} if decoder.name in STRICT else {})
                decoder.thread_count = _THREADS
                decoder.thread_type = "AUTO"
                yield opened, stream
        except av.error.MemoryError:
            raise
        except av.FFmpegError as error:
            raise MediaError(BROKEN) from error


# --- containers -------------------------------------------------------------------------------------------------------


def _video_stream(container: InputContainer) -> VideoStream:
    """Return the first video stream that is no cover image.

    Raises:
        MediaError: there is none, or its codec is not supported.
    """
    for stream in container.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic:
            if stream.codec_context is None or stream.codec_context.name not in DECODERS:
                raise MediaError(f"has a video codec that is not supported; supported: {', '.join(DECODERS)}")
            return stream
    raise MediaError("has no video stream")


def _numbered_packets(container: InputContainer, stream: VideoStream) -> Iterator[tuple[int, Packet[VideoStream]]]:
    """The packets that hold something, numbered."""
    return enumerate(packet for packet in container.demux(stream) if packet.size)


def _numbered(frames: Iterator[VideoFrame], first: int) -> Iterator[VideoFrame]:
    """Frames in the order of decoder output, each with its number as its time."""
    for number, frame in enumerate(frames, first):
        frame.pts = number
        yield frame


def _timeline(container: InputContainer, stream: VideoStream, container_name: str) -> Timeline:
    """Return the timeline of all packets.

    Raises:
        MediaTooLargeError: too many packets.
        MediaError: a packet is cut short, or has no time.
    """
    codec = stream.codec_context.name
    extradata = stream.codec_context.extradata or b""
    check_packets(len(stream.index_entries))
    packets: list[PacketInfo] = []
    decoded_at: list[int] = []
    last, last_duration = None, 0
    for number, packet in _numbered_packets(container, stream):
        check_packets(number + 1)
        if packet.is_corrupt:
            raise MediaError(BROKEN)
        pts = packet.dts if packet.pts is None and container_name == "avi" else packet.pts
        if pts is None:
            raise MediaError("does not say when its frames are shown; write it again: ffmpeg -i IN OUT.mp4")
        entry = packet.is_keyframe and is_entry(codec, packet, extradata)
        shown = not packet.is_discard and is_shown(codec, packet)
        packets.append(PacketInfo(pts, packet.is_keyframe, entry, shown))
        decoded_at.append(pts if packet.dts is None else packet.dts)
        if shown and (last is None or pts > last):
            last, last_duration = pts, max(0, packet.duration or 0)
    if container_name == "mov" and len(packets) < len(stream.index_entries):
        raise MediaError(BROKEN)  # the demuxer stops without an error at a sample beyond the end
    if container_name == "mpegts" and any(first > second for first, second in pairwise(decoded_at)):
        raise MediaError("starts over part way through; cut it there, or write it again: ffmpeg -i IN OUT.mp4")
    assert stream.time_base is not None, "every stream that was opened has a clock"
    return Timeline(
        packets, decoded_at, last_duration, max(0, stream.duration or 0), stream.time_base,
        float(stream.average_rate or 0), codec in INTRA_ONLY,
    )  # fmt: skip

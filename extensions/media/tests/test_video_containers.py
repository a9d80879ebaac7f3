"""AVI and MPEG-TS, and files whose clock stands still: every frame, in order, at its time.

Oracle: PyAV's own decoding from start to end, and known colours.
"""

from __future__ import annotations

import contextlib
import struct
from io import BytesIO
from typing import Any

import av
import numpy as np
import pytest

from corellm.config import MultiModalConfig
from corellm.errors import MediaError, MediaTooLargeError
from corellm.media.video import Video
from corellm_media.video.files import load_video
from extensions.media.tests.videos import colour, encode, moving, plain, same_colour

REORDERED = {"x264-params": "keyint=8:min-keyint=8:scenecut=0:bframes=2:b-adapt=0"}
VIDEOS: dict[str, dict[str, Any]] = {
    "AVI, MPEG-4": {"codec": "mpeg4", "container": "avi", "group": 8},
    "AVI, MPEG-4, reordered": {"codec": "mpeg4", "container": "avi", "group": 8, "options": {"bf": "2"}},
    "AVI, H.264": {"container": "avi", "options": {"bf": "0"}},
    "AVI, H.264, reordered": {"container": "avi", "options": REORDERED},
    "AVI, MJPEG": {"codec": "mjpeg", "container": "avi", "pixels": "yuvj420p"},
    "AVI, FFV1": {"codec": "ffv1", "container": "avi", "group": 8},
    "MPEG-TS, H.264": {"container": "mpegts", "options": REORDERED},
    "MPEG-TS, HEVC": {"codec": "libx265", "container": "mpegts", "options": {"x265-params": "log-level=none:pools=1"}},
    "MPEG-TS, MPEG-2": {"codec": "mpeg2video", "container": "mpegts", "group": 8, "options": {"bf": "2"}},
    "AVCHD": {"container": "mpegts", "options": REORDERED, "container_options": {"mpegts_m2ts_mode": "1"}},
}  # fmt: skip


def load(data: bytes, **limits: Any) -> Video:
    """`load_video` with limits given by name."""
    return load_video(data, MultiModalConfig(**limits))


def in_order(data: bytes) -> list[np.ndarray[Any, Any]]:
    """All frames in the order PyAV's decoder gives them."""
    with av.open(BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def nearest(frame: np.ndarray[Any, Any], colours: np.ndarray[Any, Any]) -> int:
    """Which of the colours a frame has, up to what codecs make of it."""
    return int(np.abs(frame.reshape(-1, 3).mean(0) - colours).max(axis=1).argmin())


@pytest.mark.parametrize("name", VIDEOS)
def test_every_frame_at_its_time_however_few_are_read(name: str) -> None:
    """All frames are PyAV's, 25 a second; some read alone are the same."""
    data = encode([moving(n) for n in range(30)], **VIDEOS[name])
    expected, video = in_order(data), load(data)
    frames = list(video.read())
    assert len(frames) == video.num_frames == len(expected) == 30
    assert all(np.array_equal(a, b) for a, b in zip(frames, expected, strict=True))
    assert video.timestamps(range(30)) == pytest.approx([n / 25 for n in range(30)])
    assert (video.metadata.fps, video.metadata.duration) == (25.0, pytest.approx(1.2))
    for chosen in ([29], [0, 29], [3, 4, 17], [8], [7, 9, 24]):
        for index, frame in zip(chosen, video.read(chosen), strict=True):
            assert np.array_equal(frame, frames[index]), (chosen, index)


@pytest.mark.parametrize("name", VIDEOS)
def test_frames_come_in_the_order_they_were_filmed(name: str) -> None:
    """By their colours, whatever order they are stored in."""
    video = load(encode([plain(n) for n in range(20)], **VIDEOS[name]))
    colours = np.array([colour(n) for n in range(20)])
    assert [nearest(frame, colours) for frame in video.read()] == list(range(20))


@pytest.mark.parametrize("name", ["AVI, MPEG-4, reordered", "AVI, H.264", "MPEG-TS, H.264", "AVCHD"])
def test_cut_inside_a_packet_or_chunk_it_is_refused(name: str) -> None:
    """Never half a video. (An MPEG-TS says nowhere how long it is: whole packets are a shorter one.)"""
    data = encode([plain(n) for n in range(12)], **VIDEOS[name])
    step = {"MPEG-TS, H.264": 188, "AVCHD": 192}.get(name)
    assert load(data).num_frames == 12
    for length in range(1, len(data), 61):
        if step is None or length % step:
            with pytest.raises(MediaError):
                list(load(data[:length]).read())


@pytest.mark.parametrize("name", ["AVI, MPEG-4, reordered", "AVI, H.264, reordered", "MPEG-TS, H.264"])
def test_damaged_anywhere_nothing_worse_happens_than_an_error(name: str) -> None:
    """Random bytes changed: frames of the right shape or a MediaError, no third thing."""
    data = encode([plain(n) for n in range(8)], **VIDEOS[name])
    rng = np.random.default_rng(0)
    for trial in range(120):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data) if trial % 2 else 600, size=4):
            damaged[place] = rng.integers(0, 256)
        with contextlib.suppress(MediaError):
            assert all(frame.ndim == 3 for frame in load(bytes(damaged), max_video_pixels=1 << 20).read())


@pytest.mark.parametrize("container", ["avi", "mpegts"])
def test_limits_apply(container: str) -> None:
    """Pixels of a frame, and of what is decoded; before either is."""
    data = encode([plain(n) for n in range(40)], container=container)
    with pytest.raises(MediaTooLargeError, match="64 x 48 = 3072 pixels"):
        load(data, max_video_pixels=3071)
    video = load(data, max_video_decoded_pixels=39 * 3072)
    with pytest.raises(MediaTooLargeError, match="pixels of decoding"):
        list(video.read())


def test_a_transport_stream_that_begins_anew_is_refused() -> None:
    """Two recordings joined, their packets numbered on: their times overlap, and frames would get lost."""
    data = bytearray(encode([plain(n) for n in range(10)], container="mpegts") * 2)
    counts: dict[bytes, int] = {}
    for at in range(0, len(data), 188):
        track = bytes([data[at + 1] & 0x1F, data[at + 2]])
        counts[track] = counts.get(track, -1) + bool(data[at + 3] & 0x10)  # counted where there is content
        data[at + 3] = data[at + 3] & 0xF0 | counts[track] & 0x0F
    with pytest.raises(MediaError, match="starts over"):
        load(bytes(data))


# --- a clock that stands still ----------------------------------------------------------------------------------------


def standing_still(data: bytes, *, stated: bool) -> bytes:
    """An MP4 whose frames last no time; its duration stays, if `stated`."""
    still = bytearray(data)
    table = still.index(b"stts") + 8
    for entry in range(int.from_bytes(still[table : table + 4], "big")):
        struct.pack_into(">I", still, table + 8 + 8 * entry, 0)
    if not stated:
        struct.pack_into(">I", still, still.index(b"mdhd") + 20, 0)
    return bytes(still)


@pytest.mark.parametrize(("stated", "rate"), [(True, 10), (False, 24)])
@pytest.mark.parametrize("options", [{"bf": "0"}, REORDERED], ids=["in order", "reordered"])
def test_an_mp4_of_no_frames_a_second_has_all_of_them(stated: bool, rate: int, options: dict[str, str]) -> None:
    """At equal distances over the duration it states, else 24 a second."""
    data = encode([plain(n) for n in range(10)], rate=10, options=options)
    video = load(standing_still(data, stated=stated))
    assert video.num_frames == 10
    assert all(same_colour(frame, n) for n, frame in enumerate(video.read()))
    assert same_colour(next(video.read([6])), 6)
    delay = 1 if options is REORDERED and stated else 0  # which the duration counts, with reordering
    assert video.metadata.fps == pytest.approx(10 * rate / (10 + delay) if stated else rate)
    assert video.timestamps(range(10)) == pytest.approx([n / video.metadata.fps for n in range(10)])


@pytest.mark.parametrize("container", ["matroska", "mpegts"])
def test_so_has_any_other_file_whose_frames_are_all_at_one_time(container: str) -> None:
    """Written with the same time in every packet."""
    buffer = BytesIO()
    timed = encode([plain(n) for n in range(10)], options={"bf": "0"})
    with av.open(BytesIO(timed)) as source, av.open(buffer, "w", container) as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.pts = packet.dts = 0
                packet.stream = stream
                output.mux(packet)
    video = load(buffer.getvalue())
    assert video.num_frames == 10
    assert all(same_colour(frame, n) for n, frame in enumerate(video.read()))
    assert video.metadata.fps is not None
    assert video.timestamps(range(10)) == pytest.approx([n / video.metadata.fps for n in range(10)])

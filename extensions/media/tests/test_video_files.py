"""Encoded videos: frames and times are right in every container and codec, however few are read; bad files fail early.

Oracles: known colours, PyAV's own decoding from start to end. Hostile files are patched byte by byte.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from corellm.config import MultiModalConfig
from corellm.errors import MediaError, MediaTooLargeError
from corellm.media.video import Video
from corellm_media.video.files import load_video
from corellm_media.video.frame import Orientation
from extensions.media.tests.test_audio_streams import encoded, tones
from extensions.media.tests.videos import (
    HEIGHT,
    WIDTH,
    Measured,
    colour,
    decode,
    encode,
    measure,
    moving,
    plain,
    same_colour,
)

pytestmark = pytest.mark.fresh_starts
X264 = "keyint=8:min-keyint=8:scenecut=0:bframes=3:"
X265 = {"x265-params": "keyint=8:min-keyint=8:scenecut=0:bframes=3:log-level=none:pools=1:"}
ALTREF = {"auto-alt-ref": "1", "lag-in-frames": "8", "cpu-used": "4"}  # references between frames out of order
VIDEOS: dict[str, dict[str, Any]] = {
    "H.264": {"options": {"x264-params": X264}},
    "H.264, open groups": {"options": {"x264-params": X264 + "open-gop=1"}},
    "H.264, intra refresh": {"options": {"x264-params": "keyint=8:intra-refresh=1"}},
    "H.264, 10 bits": {"pixels": "yuv420p10le", "options": {"x264-params": X264}},
    "H.264 in Matroska": {"container": "matroska", "options": {"x264-params": X264}},
    "H.264 in fragments": {
        "options": {"x264-params": X264},
        "container_options": {"movflags": "frag_keyframe+empty_moov+default_base_moof"},
    },
    "H.264, cut by an edit list": {
        "options": {"x264-params": X264},
        "first_pts": -512 * 11,
        "container_options": {"avoid_negative_ts": "disabled"},
    },
    "H.264, not from zero": {"options": {"x264-params": X264}, "first_pts": 512 * 100, "container": "matroska"},
    "HEVC": {"codec": "libx265", "options": {"x265-params": X265["x265-params"] + "open-gop=0"}},
    "HEVC, open groups": {"codec": "libx265", "options": {"x265-params": X265["x265-params"] + "open-gop=1"}},
    "AV1": {"codec": "libsvtav1", "group": 8, "options": {"preset": "12"}},
    "VP8": {"codec": "libvpx", "container": "webm", "group": 8, "options": ALTREF},
    "VP9": {"codec": "libvpx-vp9", "container": "webm", "group": 8, "options": ALTREF},
    "MPEG-4": {"codec": "mpeg4", "group": 8, "options": {"bf": "2"}},
    "MPEG-2": {"codec": "mpeg2video", "container": "matroska", "group": 8, "options": {"bf": "2"}},
    "MJPEG": {"codec": "mjpeg", "container": "mov", "pixels": "yuvj420p"},
    "ProRes": {"codec": "prores_ks", "container": "mov", "pixels": "yuv422p10le"},
    "FFV1": {"codec": "ffv1", "container": "matroska", "group": 8},
}  # fmt: skip


LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured as Linux shows it")


def load(data: bytes | Path, **limits: int) -> Video:
    """`load_video` with limits given by name."""
    return load_video(data, MultiModalConfig(**limits))


@pytest.fixture(scope="module", name="file")
def ordinary_file() -> bytes:
    """Thirty frames of H.264 in MP4, one second."""
    return one_second()


def one_second() -> bytes:
    """The bytes of `ordinary_file`."""
    return encode([plain(n) for n in range(30)], rate=30, options={"x264-params": X264})


# --- frames and times -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIDEOS)
def test_few_frames_are_the_same_as_all(name: str) -> None:
    """Frames read alone equal those of decoding everything, which equal PyAV's, in number, order, time and pixels."""
    data = encode([moving(n) for n in range(30)], **VIDEOS[name])
    expected = decode(data)
    video = load(data)
    frames = list(video.read())
    assert video.num_frames == len(frames) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(frames, expected.values(), strict=True))
    ticks = np.array(list(expected))
    np.testing.assert_allclose(
        np.diff(video.timestamps(range(len(frames)))), np.diff(ticks) / (ticks[1] - ticks[0]) / 25, atol=2e-3
    )
    rng = np.random.default_rng(0)
    for _ in range(8):
        chosen = sorted(rng.choice(len(frames), size=rng.integers(1, 5), replace=False).tolist())
        for index, frame in zip(chosen, video.read(chosen), strict=True):
            assert np.array_equal(frame, frames[index]), (chosen, index)


def test_an_edit_list_cuts(file: bytes) -> None:
    """Frames before the cut are decoded, as others refer to them, but do not count; the first frame shown is at 0."""
    data = encode([plain(n) for n in range(30)], **VIDEOS["H.264, cut by an edit list"])
    video = load(data)
    assert video.num_frames == 30 - 11
    assert all(same_colour(frame, n + 11) for n, frame in enumerate(video.read()))
    assert video.timestamps([0, 1]) == [0.0, 0.04]


def test_metadata_of_a_file(file: bytes, tmp_path: Path) -> None:
    """From its header and packets, the same from bytes and from a file."""
    path = tmp_path / "file"
    path.write_bytes(file)
    for form in (file, bytearray(file), memoryview(file), path, str(path)):
        video = load(form)
        known = video.metadata
        assert (known.total_num_frames, known.width, known.height) == (30, WIDTH, HEIGHT)
        assert (known.fps, known.duration, known.frames_indices, known.do_sample_frames) == (30.0, 1.0, None, None)
        assert video.timestamps([0, 3, 3, 29]) == [0.0, 0.1, 0.1, 29 / 30]
    frame = next(video.read([7]))
    assert (frame.shape, frame.dtype, frame.flags.writeable) == ((HEIGHT, WIDTH, 3), np.uint8, True)
    assert same_colour(frame, 7)


def test_frames_at_uneven_times() -> None:
    """Times are those of the container, the rate is their average."""
    times = [0, 40, 50, 500, 1100, 1500]
    for container in ("mp4", "matroska"):
        video = load(encode([plain(n) for n in range(6)], container=container, milliseconds=times))
        assert video.timestamps(range(6)) == pytest.approx([t / 1000 for t in times], abs=1e-3)
        assert all(same_colour(frame, n) for n, frame in enumerate(video.read()))
        duration = video.metadata.duration
        assert duration is not None
        assert 1.5 <= duration < 2
        assert video.metadata.fps == pytest.approx(6 / duration, rel=0.02)


@pytest.mark.parametrize("rate", [1, 24, 30, 60])
def test_the_rate_is_exact_where_times_are_rounded(rate: int) -> None:
    """Matroska counts milliseconds; 30 frames per second are 30 all the same."""
    assert load(encode([plain(n) for n in range(7)], container="matroska", rate=rate)).metadata.fps == rate


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_one_frame(container: str) -> None:
    """Is a video, too."""
    video = load(encode([plain(5)], container=container))
    assert video.num_frames == 1
    assert same_colour(next(video.read()), 5)
    assert video.timestamps([0]) == [0.0]


@pytest.mark.parametrize(
    ("matrix", "corners"),  # a, b, c, d of x' = a x + c y, y' = b x + d y; corners read row by row
    [
        ((1, 0, 0, 1), "RGBW"), ((0, 1, -1, 0), "BRWG"), ((-1, 0, 0, -1), "WBGR"), ((0, -1, 1, 0), "GWRB"),
        ((-1, 0, 0, 1), "GRWB"), ((1, 0, 0, -1), "BWRG"), ((0, 1, 1, 0), "RBGW"), ((0, -1, -1, 0), "WGBR"),
    ],
)  # fmt: skip
def test_frames_come_upright(matrix: tuple[int, int, int, int], corners: str) -> None:
    """All eight ways a phone may have been held or mirrored."""
    colours = {"R": (255, 0, 0), "G": (0, 255, 0), "B": (0, 0, 255), "W": (255, 255, 255)}
    frame = np.array([colours[c] for c in "RGBW"], np.uint8).reshape(2, 2, 3)
    frame = frame.repeat(HEIGHT // 2, axis=0).repeat(WIDTH // 2, axis=1)
    a, b, c, d = (value << 16 for value in matrix)
    file = encode([frame], "mjpeg", "mov", pixels="yuvj444p", matrix=(a, b, 0, c, d, 0, 0, 0, 1 << 30))
    video = load(file)
    upright = next(video.read())
    assert upright.shape == (video.metadata.height, video.metadata.width, 3)
    assert upright.shape[:2] == ((HEIGHT, WIDTH) if matrix[0] else (WIDTH, HEIGHT))
    seen = [upright[y, x].astype(int) for y in (4, -4) for x in (4, -4)]
    assert "".join(min(colours, key=lambda k: abs(pixel - colours[k]).sum()) for pixel in seen) == corners


def test_rotation_where_side_data_cannot_be_listed() -> None:
    """PyAV raises on kinds it does not know; the angle it gives on its own leads to the same orientation."""
    for matrix in ((1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)):
        a, b, c, d = (value << 16 for value in matrix)
        file = encode([plain(0)], "mjpeg", "mov", pixels="yuvj444p", matrix=(a, b, 0, c, d, 0, 0, 0, 1 << 30))
        with av.open(BytesIO(file)) as container:
            frame = next(container.decode(video=0))

        class Unlisted:
            rotation = frame.rotation

            @property
            def side_data(self) -> Any:
                raise ValueError("59 is not a valid Type")

        unlisted: Any = Unlisted()
        assert vars(Orientation(unlisted)) == vars(Orientation(frame))


def gif_image(image: Image.Image, left: int, top: int, disposal: int, hundredths: int) -> bytes:
    """One image of an animation, with its own palette, as Pillow encodes an image alone."""
    buffer = BytesIO()
    image.save(buffer, "GIF")
    data = buffer.getvalue()
    with Image.open(buffer) as saved:
        transparent = saved.info.get("transparency")
    size = struct.pack("<HH", *image.size)
    start = data.index(b"\x2c\0\0\0\0" + size)
    control = struct.pack("<BHB", disposal << 2 | (transparent is not None), hundredths, transparent or 0)
    place = struct.pack("<HH", left, top) + size + bytes([0x80 | data[start + 9] & 0x40 | data[10] & 7])  # interlaced
    palette = data[13 : 13 + (6 << (data[10] & 7))]
    return b"\x21\xf9\4" + control + b"\0\x2c" + place + palette + data[start + 10 : -1]


@pytest.mark.parametrize("disposal", [0, 1, 2, 3])
def test_gif_as_browsers_show_it(disposal: int) -> None:
    """What is left of a frame before the next, parts that leave the canvas, times too short to be meant.

    Neither Pillow nor FFmpeg is an oracle: what disposal clears they fill, if nothing is transparent, with a colour.
    """
    canvas = Image.new("RGBA", (WIDTH, HEIGHT))
    images, shown = [], []
    for n, hundredths in enumerate((10, 20, 10, 1, 10, 10)):
        part = Image.new("RGBA", (20, 16), (0, 0, 0, 0) if n % 2 else (*colour(n), 255))
        part.paste((255, 255, 0, 255), (2 * n, n, 2 * n + 9, n + 9))
        images.append(gif_image(part, 9 * n, 7 * n, disposal, hundredths))
        after = canvas.copy()
        after.paste(part, (9 * n, 7 * n), part)
        shown.append(Image.new("RGBA", canvas.size, "white"))
        shown[-1].alpha_composite(after)
        if disposal == 2:
            after.paste((0, 0, 0, 0), (9 * n, 7 * n, 9 * n + 20, 7 * n + 16))
        canvas = canvas if disposal == 3 else after
    # The background colour, that of index 0, is red.
    header = b"GIF89a" + struct.pack("<HHBBB", WIDTH, HEIGHT, 0x80, 0, 0) + b"\xff\0\0\0\0\0"
    video = load(header + b"".join(images) + b";")
    assert video.timestamps(range(6)) == pytest.approx([0, 0.1, 0.3, 0.4, 0.5, 0.6])
    assert (video.metadata.duration, video.metadata.fps) == (0.7, 6 / 0.7)
    for frame, expected in zip(video.read(), shown, strict=True):
        assert np.array_equal(frame, np.asarray(expected.convert("RGB")))
    assert np.array_equal(next(video.read([4])), np.asarray(shown[4].convert("RGB")))


def test_transparency_is_laid_on_white() -> None:
    """Half transparent red is pink."""
    data = BytesIO()
    with av.open(data, "w", "matroska") as output:
        stream: Any = output.add_stream("ffv1", 25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "bgra"
        frame = av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 4), (255, 0, 0, 128), np.uint8), format="rgba")
        for packet in [*stream.encode(frame.reformat(format="bgra")), *stream.encode(None)]:
            output.mux(packet)
    assert (next(load(data.getvalue()).read()) == (255, 127, 127)).all()


def growing(large_frames: int) -> bytes:
    """Two frames of 48 x 32, then some of 96 x 64."""
    small = encode([plain(1, 48, 32)] * 2, "mjpeg", pixels="yuvj420p")
    large = encode([plain(2, 96, 64)] * large_frames, "mjpeg", pixels="yuvj420p")
    data = BytesIO()
    with av.open(data, "w", "matroska") as output, av.open(BytesIO(small)) as first, av.open(BytesIO(large)) as second:
        stream = output.add_stream_from_template(first.streams.video[0])
        for number, packet in enumerate(p for c in (first, second) for p in c.demux(video=0) if p.size):
            packet.stream, packet.pts, packet.dts = stream, number * 512, number * 512
            output.mux(packet)
    return data.getvalue()


def test_frames_that_change_their_size() -> None:
    """As live recordings do: they are scaled to the first one's, and counted as they are."""
    frames = list(load(growing(2)).read())
    assert [frame.shape for frame in frames] == [(32, 48, 3)] * 4
    assert all(same_colour(frame, n) for frame, n in zip(frames, (1, 1, 2, 2), strict=True))
    with pytest.raises(MediaError, match="frame 2"):
        list(load(growing(2), max_video_pixels=48 * 32).read())
    frames = load(growing(18), max_video_decoded_pixels=20 * 48 * 32 * 2).read()
    assert same_colour(next(frames), 1)
    with pytest.raises(MediaTooLargeError, match="pixels of decoding"):
        list(frames)


def with_audio(container: str) -> bytes:
    """Video and audio, the tags in a character set of old."""
    data = BytesIO()
    with av.open(data, "w", container) as output:
        video: Any = output.add_stream("libx264", 25, options={"x264-params": X264})
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        audio: Any = output.add_stream("aac", 16000)
        for n in range(10):
            for packet in video.encode(av.VideoFrame.from_ndarray(plain(n)).reformat(format="yuv420p")):
                output.mux(packet)
            block = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            block.sample_rate, block.pts = 16000, n * 1024
            for packet in audio.encode(block):
                output.mux(packet)
        for packet in [*video.encode(None), *audio.encode(None)]:
            output.mux(packet)
    return data.getvalue()


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_audio_is_skipped(container: str) -> None:
    """In MP4 FFmpeg does not get to see its track."""
    data = with_audio(container)
    assert all(same_colour(frame, n) for n, frame in enumerate(load(data).read()))
    if container == "mp4":
        broken = bytearray(data)
        place = broken.rfind(b"stsz")
        broken[place + 8 : place + 16] = struct.pack(">II", 1, 2**31)
        assert load(bytes(broken)).num_frames == 10


# --- long videos, many readers ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ten_minutes() -> bytes:
    """6,000 frames in groups of 50, the colour changing with every 300."""
    still = [plain(n) for n in range(20)]
    return encode([still[n // 300] for n in range(6000)], "mpeg4", rate=10, group=50)


SAMPLE = range(10, 6000, 300)


def test_ten_minutes_are_read_in_steps(ten_minutes: bytes) -> None:
    """A sample of 20 of 6,000 frames is read by decoding 220: the groups between are passed by."""
    pixels = len(SAMPLE) * 11 * WIDTH * HEIGHT
    video = load(ten_minutes, max_video_decoded_pixels=pixels)
    assert video.metadata.duration == pytest.approx(600)
    assert all(same_colour(frame, n // 300) for n, frame in zip(SAMPLE, video.read(SAMPLE), strict=True))
    with pytest.raises(MediaTooLargeError, match=f" {pixels} pixels .* {pixels - 1} "):
        next(load(ten_minutes, max_video_decoded_pixels=pixels - 1).read(SAMPLE))
    with pytest.raises(MediaTooLargeError, match=r"6000 frames .* 768"):
        video.read()


@LINUX
@pytest.mark.full
def test_memory_does_not_grow_with_the_length(ten_minutes: bytes, tmp_path: Path) -> None:
    """Less than a tenth of what its frames would take."""
    measured = measure({"file": ten_minutes}, tmp_path, SAMPLE)["file"]
    assert measured.frames == 20
    assert measured.kilobytes < 16_000 + len(ten_minutes) // 1024


@LINUX
def test_readers_share_a_video_but_no_decoder(file: bytes) -> None:
    """From several threads, interleaved in one, and given up half way."""
    video = load(file)

    def read(start: int) -> bool:
        return all(
            same_colour(frame, n) for n, frame in zip(range(start, 30, 3), video.read(range(start, 30, 3)), strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, [n % 7 for n in range(32)]))

    def decoders() -> int:
        names = []
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # another thread that ends meanwhile
                names.append((task / "comm").read_text())
        return sum(name.startswith("av:") for name in names)

    for _ in range(50):
        first, second = video.read(), video.read([1, 20])
        assert same_colour(next(first), 0)
        assert same_colour(next(second), 1)
        assert decoders() >= 2
        del first, second
    assert not decoders()


def remux(data: bytes, *, drop: int = 0, all_keys: bool = False) -> bytes:
    """The same packets in Matroska, without the first `drop`; or all of them called key frames."""
    buffer = BytesIO()
    with av.open(buffer, "w", "matroska") as output, av.open(BytesIO(data)) as source:
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in [packet for packet in source.demux(video=0) if packet.size][drop:]:
            packet.stream, packet.is_keyframe = stream, packet.is_keyframe or all_keys
            output.mux(packet)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["H.264", "H.264, open groups", "HEVC", "VP9", "AV1", "MPEG-4", "MPEG-2"])
def test_key_frames_that_are_none(name: str) -> None:
    """A container that calls every frame a key frame does not mislead: decoding starts anew, from the start."""
    source = encode([moving(n) for n in range(20)], **VIDEOS[name])
    expected = list(decode(source).values())
    # In MP4 the key frames are those of a table; without it, all are.
    video = load(source.replace(b"stss", b"free") if b"stss" in source else remux(source, all_keys=True))
    for n in (3, 13, 18):
        assert np.array_equal(next(video.read([n])), expected[n])


def test_decoding_anew_is_counted_in_one() -> None:
    """The packet that was no key frame, and the nineteen from the start."""
    file = still(WIDTH, HEIGHT, 20).replace(b"stss", b"free")
    pixels = 20 * WIDTH * HEIGHT
    assert len(list(load(file, max_video_decoded_pixels=pixels).read([18]))) == 1
    with pytest.raises(MediaTooLargeError, match=f"takes {pixels} pixels .* raise max_video_decoded_pixels"):
        next(load(file, max_video_decoded_pixels=pixels - 1).read([18]))


@pytest.mark.parametrize("name", ["H.264", "H.264, open groups", "HEVC, open groups", "VP9", "MPEG-4"])
def test_a_video_cut_out_of_a_longer_one(name: str) -> None:
    """Frames whose references are missing do not count; all others come, wherever the cut is, as PyAV decodes them."""
    source = encode([moving(n) for n in range(30)], **VIDEOS[name])
    whole = {pixels.tobytes() for pixels in decode(source).values()}
    for drop in range(1, 20, 3):
        video = load(remux(source, drop=drop))
        frames = list(video.read())
        assert 30 - drop - 10 <= len(frames) <= 30 - drop
        assert all(frame.tobytes() in whole for frame in frames), drop
        assert np.array_equal(next(video.read([len(frames) - 2])), frames[-2])


def test_images_only_others_refer_to() -> None:
    """A VP8 packet whose image is not shown is no frame."""
    file = encode([plain(n) for n in range(12)], "libvpx", "webm", group=8)
    with av.open(BytesIO(file)) as container:
        hidden = bytes([packet for packet in container.demux(video=0) if packet.size][5])
    place = file.index(hidden)
    video = load(file[:place] + bytes([hidden[0] & ~0x10]) + file[place + 1 :])
    assert video.num_frames == 11
    shown = [n for n in range(12) if n != 5]
    assert all(same_colour(frame, n) for n, frame in zip(shown, video.read(), strict=True))
    assert video.timestamps([4, 5]) == [0.16, 0.24]


# --- what is refused --------------------------------------------------------------------------------------------------

SDP = b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video %d RTP/AVP 96\r\n"


@pytest.mark.parametrize(
    "text",
    [
        SDP % 5004,
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:%d/a.ts\n",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b'<?xml version="1.0"?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>',
        b"hello world\n" * 9,
    ],
)
def test_texts_that_name_other_places_open_nothing(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Playlists and session descriptions are refused by their first bytes, under any name."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = text % server.getsockname()[1] if b"%d" in text else text
        server.settimeout(0.01)
        for name in ("file.mp4", "file.m3u8", "file.sdp"):
            (tmp_path / name).write_bytes(text)
            with pytest.raises(MediaError, match=r"file.* not an MP4"):
                load(tmp_path / name)
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    "begin", [b"\0\0\0\x08ftyp", b"\x1aE\xdf\xa3\x80\x18S\x80g\xff", b"GIF89a\1\0\1\0\0\0\0;", b"\0\0\0\x08moov"]
)
def test_a_signature_alone_does_not_help(begin: bytes) -> None:
    """What follows it is read as that format and as no other."""
    with pytest.raises(MediaError, match=r"^the video "):
        load(begin + SDP % 5004)


def test_no_video(tmp_path: Path) -> None:
    """Nothing, a directory, no file, and audio alone: one line each."""
    (tmp_path / "empty").touch()
    audio = encoded("M4A", tones(20_000, 44_100))
    for source, words in (
        (b"", "is empty"), (tmp_path / "empty", "is empty"), (tmp_path, "is a directory"),
        (tmp_path / "no", "no such file: .*no"), (Path("/dev/zero"), "regular file"),
        (audio, "no video stream"),
    ):  # fmt: skip
        with pytest.raises(MediaError, match=words):
            load(source)


SMALL = (
    "libx264 in mp4", "libx264 in frag", "mjpeg in mov", "libvpx in webm", "libvpx-vp9 in webm",
    "mpeg2video in matroska", "gif",
)  # fmt: skip


@functools.cache
def small_file(name: str) -> bytes:
    """Eight frames, by one of `SMALL`."""
    if name == "gif":
        buffer = BytesIO()
        images = [Image.fromarray(moving(n)) for n in range(8)]
        images[0].save(buffer, "GIF", save_all=True, append_images=images[1:])
        return buffer.getvalue()
    codec, container = name.split(" in ")
    fragments = {"movflags": "frag_keyframe+empty_moov+default_base_moof"} if container == "frag" else None
    return encode(
        [moving(n) for n in range(8)],
        codec,
        "mp4" if fragments else container,
        group=4,
        pixels="yuvj420p" if codec == "mjpeg" else "yuv420p",
        container_options=fragments,
    )


@pytest.mark.parametrize("name", SMALL)
def test_cut_anywhere_it_is_refused(name: str) -> None:
    """Never half a video. (A fragmented MP4 cut between two fragments is a whole one: nothing says how many follow.)"""
    data = small_file(name)
    whole = load(data).num_frames
    for end in range(0, len(data), max(1, len(data) // 80)):
        try:
            video = load(data[:end])
        except MediaError:
            continue
        assert "frag" in name
        assert len(list(video.read())) < whole


@pytest.mark.parametrize("name", SMALL)
def test_damaged_anywhere_nothing_worse_happens_than_an_error(name: str) -> None:
    """Bytes changed at random: a `MediaError`, or frames of the size and number announced; no crash."""
    data = small_file(name)
    rng = np.random.default_rng(0)
    for _ in range(120):
        damaged = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 5)):
            damaged[place] = rng.integers(256)
        try:
            video = load(bytes(damaged), max_video_pixels=1 << 20)
            frames = list(video.read())
        except MediaError:
            continue
        assert len(frames) == video.num_frames
        assert {frame.shape for frame in frames} == {(video.metadata.height, video.metadata.width, 3)}


def test_a_frame_that_does_not_decode_is_named(file: bytes) -> None:
    """The error names the broken frame; frames before it can be read, and those of other groups."""
    with av.open(BytesIO(file)) as container:
        packet = [p for p in container.demux(video=0) if p.size][9]
    broken = bytearray(file)
    assert packet.pos is not None
    broken[packet.pos + 5 : packet.pos + packet.size] = b"\xff" * (packet.size - 5)
    video = load(bytes(broken))
    assert same_colour(next(video.read([3])), 3)
    assert same_colour(next(video.read([25])), 25)
    with pytest.raises(MediaError, match=r"^frame \d+ \(at 0\.\d\d s\)"):
        list(video.read())


def patched(data: bytes, kind: bytes, offset: int, *values: int) -> bytes:
    """The file with 32-bit numbers written over the content of a box, `offset` bytes into it."""
    place = data.rfind(kind) + 4 + offset
    packed = struct.pack(f">{len(values)}I", *values)
    return data[:place] + packed + data[place + len(packed) :]


def many_samples(file: bytes, count: int) -> bytes:
    """Tables that announce `count` frames of one byte each, in a few bytes."""
    sized = patched(file, b"stsz", 4, 1, count)
    return patched(patched(sized, b"stts", 8, count), b"stsc", 12, count)


def still(width: int, height: int, count: int) -> bytes:
    """One key frame, and `count - 1` that change nothing of it."""
    data = BytesIO()
    first = BytesIO(encode([plain(0, width, height)] * 2, "mpeg4"))
    with av.open(data, "w", "mp4") as output, av.open(first) as source:
        stream = output.add_stream_from_template(source.streams.video[0])
        key, same = (packet for packet in source.demux(video=0) if packet.size)
        for number in range(count):
            packet = av.Packet(bytes(same if number else key))
            packet.stream, packet.is_keyframe, packet.time_base = stream, not number, key.time_base
            packet.pts = packet.dts = 512 * number
            output.mux(packet)
    return data.getvalue()


def still_gif(side: int, count: int) -> bytes:
    """The same image again and again."""
    image = gif_image(Image.new("P", (side, side)), 0, 0, 0, 10)
    return b"GIF89a" + struct.pack("<HHBBB", side, side, 0, 0, 0) + image * count + b";"


def bombs(file: bytes) -> dict[str, bytes]:
    """Small files that announce much."""
    gif = small_file("gif")
    nested = b"".join(struct.pack(">I4s", 8 * (100_000 - n), b"trak") for n in range(100_000))
    return {
        "30000 x 30000 in MP4": patched(file, b"avc1", 24, 30000 << 16 | 30000),
        "30000 x 30000 in GIF": gif[:6] + struct.pack("<HH", 30000, 30000) + gif[10:],
        "two billion frames": many_samples(file, 2 * 10**9),
        "twenty million frames": many_samples(file, 2 * 10**7),
        "run lengths": patched(file, b"ctts", 8, 2**31),
        "edits": patched(file, b"elst", 4, 10**6),
        "fragments": patched(small_file("libx264 in frag"), b"trun", 4, 2**31),
        "boxes": b"\0\0\0\x08free" * 2_100_000,
        "boxes in boxes": struct.pack(">I4s", 8 + len(nested), b"moov") + nested,
        "clusters": b"\x1aE\xdf\xa3\x80\x18S\x80g\x01" + b"\xff" * 7 + b"\x1fC\xb6u\xff" * 2_100_000,
        "blocks": b"GIF89a\1\0\1\0\0\0\0\x21\xfe" + b"\1a" * 2_100_000 + b"\0;",
    }


BOMBS = {
    "30000 x 30000 in MP4": "MediaTooLargeError", "30000 x 30000 in GIF": "MediaTooLargeError",
    "two billion frames": "MediaError", "twenty million frames": "MediaError", "fragments": "MediaError",
    "boxes": "MediaTooLargeError", "boxes in boxes": "MediaError", "clusters": "MediaTooLargeError",
    "blocks": "MediaError",
    "run lengths": "MediaError",
    "edits": "",  # FFmpeg applies no more of them than the file has frames
}  # fmt: skip


@pytest.fixture(scope="module")
def exploded(file: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of all bombs, in one child process."""
    return measure(bombs(file), tmp_path_factory.mktemp("bombs"), pooled=True)


@LINUX
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_do_not_explode(exploded: dict[str, Any], name: str) -> None:
    """Refused, or read like any other file."""
    bomb = exploded[name]
    assert bomb.error == BOMBS[name], bomb.message
    assert bomb.error or bomb.frames == 30


@LINUX
@pytest.mark.full
def test_bombs_take_little_memory(exploded: dict[str, Any]) -> None:
    """Also those that are read."""
    assert {name: bomb.kilobytes for name, bomb in exploded.items() if bomb.kilobytes >= 100_000} == {}


@pytest.fixture(scope="module")
def too_much_decoding(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, Measured]:
    """What came of small files, all of whose frames are allowed, but too many before the last: a video and a GIF."""
    folder = tmp_path_factory.mktemp("bombs of decoding")
    video = measure({"": still(3840, 2160, 600)}, folder, [599], max_video_decoded_pixels=1 << 32)[""]
    return video, measure({"": still_gif(5700, 20)}, folder, [19])[""]


@LINUX
@pytest.mark.full
def test_bombs_of_decoding_take_little_memory(too_much_decoding: tuple[Measured, Measured]) -> None:
    assert max(bomb.kilobytes for bomb in too_much_decoding) < 100_000


@LINUX
def test_bombs_of_decoding(too_much_decoding: tuple[Measured, Measured]) -> None:
    """They are refused before they are decoded."""
    video, gif = too_much_decoding
    # A canvas is handed out, too; to open an image counts like 4096 pixels.
    for bomb, pixels, allowed in ((video, 600 * 3840 * 2160, 1 << 32), (gif, 21 * 5700**2 + 20 * 4096, 1 << 29)):
        assert bomb.error == "MediaTooLargeError"
        assert f" {pixels} pixels" in bomb.message
        assert f"the {allowed} allowed" in bomb.message


@LINUX
@pytest.mark.full
def test_a_gif_takes_a_few_canvases(tmp_path: Path) -> None:
    """However many images it has; a canvas has four bytes to the pixel."""
    measured = measure({"": still_gif(2000, 8)}, tmp_path)[""]
    assert measured.frames == 8
    assert measured.kilobytes < 5 * 4 * 2000 * 2000 / 1024


@pytest.mark.parametrize("disposal", [1, 2, 3])
def test_images_that_are_never_shown(disposal: int) -> None:
    """Are not decoded: a broken one is no error, unless it stays visible."""
    images = [gif_image(Image.fromarray(plain(n)), 0, 0, disposal, 10) for n in range(9)]
    size = struct.unpack_from("<B", images[4], 17)[0] & 7
    images[4] = images[4][: 18 + (6 << size)] + b"\x08\0"  # no data
    video = load(b"GIF89a" + struct.pack("<HHBBB", WIDTH, HEIGHT, 0, 0, 0) + b"".join(images) + b";")
    assert same_colour(next(video.read([3])), 3)
    with pytest.raises(MediaError, match="frame 4"):
        next(video.read([4 if disposal > 1 else 8]))
    if disposal > 1:
        assert same_colour(next(video.read([8])), 8)


def test_frames_larger_than_the_header_says() -> None:
    """A late frame with another size is refused before it is decoded."""
    file = bytearray(encode([plain(n) for n in range(4)], "mjpeg", "mov", pixels="yuvj420p"))
    place = file.rfind(b"\xff\xc0\0\x11")
    file[place + 5 : place + 9] = struct.pack(">HH", 30000, 30000)
    video = load(bytes(file))
    assert len(list(video.read([0, 1, 2]))) == 3
    with pytest.raises(MediaError, match="frame 3 "):
        next(video.read([3]))


def test_limits(file: bytes, tmp_path: Path) -> None:
    """Each names both numbers."""
    path = tmp_path / "file"
    path.write_bytes(file)
    with pytest.raises(MediaTooLargeError, match=r"3072 pixels, .* 3071"):
        load(file, max_video_pixels=3071)
    for form in (file, path):
        with pytest.raises(MediaTooLargeError, match=rf" {len(file)} bytes .* {len(file) - 1} "):
            load(form, max_video_bytes=len(file) - 1)
        assert load(form, max_video_bytes=len(file), max_video_pixels=3072).num_frames == 30

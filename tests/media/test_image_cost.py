"""What reading one image may cost: memory of four times its pixels, and the time of a child process."""

from __future__ import annotations

import copy
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from corellm.errors import MediaError, MediaTimeoutError
from corellm.media.image import load_image
from corellm.media.pool import MediaPool

pytestmark = pytest.mark.fresh_starts
LIMIT = 1_000_000
SIDE = 2800
SLACK = 12 * 2**20  # a band of rows and what allocators keep


def encoded(image: Image.Image, format_name: str, **options: Any) -> bytes:
    """The image as a file."""
    buffer = BytesIO()
    image.save(buffer, format_name, **options)
    return buffer.getvalue()


def gradient(side: int) -> Image.Image:
    """An image that compresses well, and whose corners differ."""
    ramp = (np.arange(side) * 255 // side).astype(np.uint8)
    pixels = np.stack([np.broadcast_to(ramp, (side, side)), np.broadcast_to(ramp[:, None], (side, side))] * 2, axis=-1)
    return Image.fromarray(np.ascontiguousarray(pixels))


# --- memory -----------------------------------------------------------------------------------------------------------

_MEASURE = """
import json, os, sys
from io import BytesIO
from pathlib import Path
import numpy, torch
from PIL import Image
from corellm.media.image import load_image
def status(key):
    return next(int(line.split()[1]) * 1024 for line in open('/proc/self/status') if line.startswith(key))
def measure(name):  # in a process of its own, whose peak begins at what it holds
    path = Path(name)
    if path.suffix == '.array':
        dtype = getattr(torch, path.stem)
        source = torch.full((3, SIDE, SIDE), 0.5, dtype=dtype)
    else:
        source = path.read_bytes()
    before = status('VmRSS')
    load_image(source, 1 << 30)
    return status('VmHWM') - before
SIDE = int(sys.argv[1])
small = BytesIO()
Image.new('RGB', (8, 8)).save(small, 'PNG')
load_image(small.getvalue(), 100)
load_image(torch.zeros(3, 8, 8), 100)
torch.set_num_threads(1)
for name in sys.argv[2:]:
    if not os.fork():
        print(json.dumps(measure(name)), flush=True)
        os._exit(0)
    os.wait()
"""


def heavy_files() -> dict[str, bytes]:
    """Files whose conversions hold several copies, and whose decoders hold more than the pixels."""
    image = gradient(SIDE)
    exif = Image.Exif()
    exif[0x112] = 6
    wide = Image.fromarray(np.arange(SIDE * SIDE, dtype=np.uint32).astype(np.uint16).reshape(SIDE, SIDE))
    return {
        "RGBA, on its side": encoded(image, "PNG", compress_level=1, exif=exif),
        "grey and alpha": encoded(image.convert("LA"), "PNG", compress_level=1),
        "16 bits": encoded(wide, "PNG", compress_level=1),
        "floats": encoded(
            Image.fromarray(np.full((SIDE, SIDE), 0.5, np.float32)), "TIFF", compression="tiff_adobe_deflate"
        ),
        "progressive": encoded(image.convert("RGB"), "JPEG", progressive=True, subsampling=0, exif=exif),
        "animated formats' decoder": encoded(image, "WEBP", lossless=True, method=0, quality=0),
    }


@pytest.mark.full
def test_an_image_takes_four_times_its_pixels_at_most(tmp_path: Path) -> None:
    """Reading takes at most 12 bytes of resident memory a pixel, beside the file's bytes or the given tensor."""
    names = []
    for name, data in heavy_files().items():
        names.append(tmp_path / name)
        names[-1].write_bytes(data)
    names += [tmp_path / f"{dtype}.array" for dtype in ("float64", "bfloat16")]
    command = [sys.executable, "-c", _MEASURE, str(SIDE), *map(str, names)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout.splitlines()
    peaks = {name.name: json.loads(line) for name, line in zip(names, lines, strict=True)}
    assert {name: peak for name, peak in peaks.items() if peak > 4 * SIDE * SIDE * 3 + SLACK} == {}


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "CMYK", "L", "1", "I", "F"])
@pytest.mark.parametrize("form", ["file", "opened"])
def test_an_image_in_bands_is_the_same_as_in_one(mode: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mode, by Pillow's own conversion of the whole, and what is opened stays as it is."""
    image = {
        "I": lambda: Image.fromarray(np.arange(100 * 100, dtype=np.int32).reshape(100, 100)),
        "F": lambda: Image.fromarray(np.linspace(0, 1, 10_000, dtype=np.float32).reshape(100, 100)),
    }.get(mode, lambda: gradient(100).convert("RGB" if mode in ("P", "CMYK") else mode).convert(mode))()
    if mode == "P":
        image.info["transparency"] = 7
    data = encoded(image, "PNG" if mode == "P" else "TIFF", **image.info)
    whole = load_image(data, LIMIT)
    monkeypatch.setattr("corellm.media.pixels._BAND_PIXELS", 700)  # 7 rows
    source: Any = data if form == "file" else Image.open(BytesIO(data))
    assert load_image(source, LIMIT).tobytes() == whole.tobytes()
    if form == "opened":
        assert source.tobytes() == Image.open(BytesIO(data)).tobytes()
        assert source.mode == Image.open(BytesIO(data)).mode


def test_arrays_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of any layout keep their pixels when read in bands; what is wrong in the last band is refused as well."""
    monkeypatch.setattr("corellm.media.pixels._BAND_PIXELS", 700)
    pixels = np.asarray(gradient(100).convert("RGB"))
    for source in (pixels, pixels.astype(np.float64) / 255, torch.from_numpy(pixels.copy()).permute(2, 0, 1)):
        assert np.array_equal(np.asarray(load_image(source, LIMIT)), pixels)
    broken = pixels / 255
    broken[99, 99, 2] = np.nan
    with pytest.raises(MediaError, match="not finite"):
        load_image(broken, LIMIT)


# --- time ----------------------------------------------------------------------------------------------


def segments(data: bytes) -> Iterator[tuple[int, int]]:
    """`(marker, where it begins)` of a JPEG as Pillow writes them, up to the end of the image."""
    at = 2
    while data[at + 1] != 0xD9:
        yield data[at + 1], at
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        while data[at] != 0xFF or data[at + 1] == 0:
            at += 1


def jpeg_of_scans(scans: int, picture: Image.Image) -> bytes:
    """A progressive JPEG of `scans` scans: its last one is repeated."""
    data = encoded(picture.convert("RGB"), "JPEG", progressive=True)
    starts = [at for marker, at in segments(data) if marker == 0xDA]
    assert len(starts) == 10
    last = data[starts[-1] : -2]
    return data[:-2] + last * (scans - 10) + data[-2:]


def test_as_many_scans_as_programs_write_are_read() -> None:
    """Whatever its size; more where the image is small, as Pillow decodes it."""
    for scans, side in ((10, 1000), (20, 1000), (100, 400)):
        data = jpeg_of_scans(scans, gradient(side))
        assert load_image(data, LIMIT).tobytes() == Image.open(BytesIO(data)).tobytes()


def test_what_looks_like_scans_in_metadata_is_none() -> None:
    """Nor what comes behind the end of the image, as of phones that keep a video there."""
    data = encoded(gradient(64).convert("RGB"), "JPEG")
    comment = b"\xff\xfe" + struct.pack(">H", 2002) + b"\xff\xda" * 1000
    assert load_image(data[:2] + comment + data[2:] + b"\xff\xda" * 1000, LIMIT).size == (64, 64)


def test_restarts_and_empty_segments_are_read() -> None:
    """However many there are: they cost a decoder little."""
    data = encoded(gradient(64).convert("RGB"), "JPEG", progressive=True)
    scans = data[data.rindex(b"\xff\xda") : -2] * 15
    for filling in (b"\xff\xd0", b"\xff\xfe\0\x02"):
        assert load_image(data[:-2] + filling * 60_000 + scans + data[-2:], LIMIT).size == (64, 64)


def tiff(entries: dict[int, int | list[int]], content: bytes = b"") -> bytes:
    """A TIFF of one directory, with `content` behind it: `entries` are LONGs, and lists lie behind the directory."""
    at = 8 + 2 + 12 * len(entries) + 4
    directory, behind = b"", b""
    for tag, value in sorted(entries.items()):
        if isinstance(value, list):
            directory += struct.pack("<HHII", tag, 4, len(value), at + len(behind))
            behind += struct.pack(f"<{len(value)}I", *value)
        else:
            directory += struct.pack("<HHII", tag, 4, 1, value)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + bytes(4) + behind + content


GREY = {258: 8, 262: 1, 277: 1}


def jpeg_in_tiff(strip: bytes, side: int, strips: int = 1) -> bytes:
    """A TIFF of equal strips; `strips` of them share the bytes of one, where there are several."""
    entries: dict[int, int | list[int]] = {**GREY, 256: side, 257: side * strips, 259: 7, 278: side}

    def places(start: int) -> dict[int, int | list[int]]:
        return {273: start, 279: len(strip)} if strips == 1 else {273: [start] * strips, 279: [len(strip)] * strips}

    return tiff(entries | places(len(tiff(entries | places(0)))), strip)


def grey_scans(scans: int) -> bytes:
    """A progressive grey JPEG of 1,000 x 1,000."""
    data = encoded(gradient(1000).convert("L"), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (scans - data.count(b"\xff\xda")) + data[-2:]


def compressed_bmp(width: int, height: int, runs: bytes) -> bytes:
    """A BMP in 256 greys whose pixels come in runs."""
    palette = b"".join(bytes([grey, grey, grey, 0]) for grey in range(256))
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    start = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start) + header + palette + runs


def test_plain_files_of_these_formats_are_read() -> None:
    """A JPEG in a TIFF, and runs in a BMP."""
    assert load_image(jpeg_in_tiff(grey_scans(10), 1000), LIMIT).size == (1000, 1000)
    rows = b"\x64\x07\0\0" * 100  # a run of 100 pixels, and the end of the row
    assert load_image(compressed_bmp(100, 100, rows + b"\0\1"), LIMIT).getcolors() == [(10_000, (7, 7, 7))]


def heavy_decoding() -> dict[str, tuple[type[MediaError], bytes]]:
    """Small files that would keep a decoder busy for many seconds; libraries refuse some by themselves."""
    parts = 1_000_000
    tiles: dict[int, int | list[int]] = {322: 1, 323: 1, 324: [8] * parts, 325: [1] * parts}
    return {
        "scans": (MediaTimeoutError, jpeg_of_scans(20_000, gradient(1000))),
        "scans hidden where a decoder resynchronizes": (MediaError, hidden_scans(20_000)),
        "tiles of a pixel": (MediaTimeoutError, tiff({**GREY, 256: 1000, 257: 1000, 259: 1, **tiles})),
        "scans in a TIFF": (MediaError, jpeg_in_tiff(grey_scans(20_000), 1000)),
        "strips that share their scans": (MediaError, jpeg_in_tiff(grey_scans(200), 1000, strips=80)),
        "runs of nothing": (MediaTimeoutError, compressed_bmp(100, 100, b"\0\2\0\0" * 20_000_000)),
    }


BUSY = (
    "scans", "scans hidden where a decoder resynchronizes", "tiles of a pixel", "scans in a TIFF",
    "strips that share their scans", "runs of nothing",
)  # fmt: skip


def hidden_scans(scans: int) -> bytes:
    """A marker that no decoder knows is skipped alone inside a scan: what follows is not its content."""
    data = encoded(gradient(1000).convert("RGB"), "JPEG", progressive=True)
    hidden = b"\xff\x02\xff\xff" + data[data.rindex(b"\xff\xda") : -2] * scans
    return data[:-2] + hidden + data[-2:]


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[MediaPool, MediaPool]]:
    """One that decodes for a second, and one that has the time of a busy machine, with the same two children."""
    patient = MediaPool(2, 60.0)
    hasty = copy.copy(patient)
    hasty._seconds = 1.0
    yield hasty, patient
    patient.close()


@pytest.mark.parametrize("name", BUSY)
def test_a_file_that_keeps_a_decoder_busy_is_refused(pools: tuple[MediaPool, MediaPool], name: str) -> None:
    """When its time is up, with the limit and the way out; the next file is read."""
    hasty, patient = pools
    kind, data = heavy_decoding()[name]
    with pytest.raises(kind, match=r"(: broken|1 s .*media_timeout)") as caught:
        load_image(data, 1 << 28, pool=hasty if kind is MediaTimeoutError else patient)
    assert kind is MediaError or caught.value.expected == 1.0
    assert load_image(encoded(gradient(8), "PNG"), LIMIT, pool=patient).size == (8, 8)

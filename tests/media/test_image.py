"""Images of every kind come out upright, in RGB, with the pixels a viewer shows; bad ones are refused, early.

Known pixels are written down here or made with Pillow's encoders; hostile files are built byte by byte.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from corellm.errors import MediaError, MediaTooLargeError
from corellm.media.image import load_image

LIMIT = 1_000_000
RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def encoded(image: Image.Image, format_name: str, **options: Any) -> bytes:
    """The image as a file."""
    buffer = BytesIO()
    image.save(buffer, format_name, **options)
    return buffer.getvalue()


def noise(width: int = 40, height: int = 30) -> Image.Image:
    """An image that no codec can shorten to nothing."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def near(got: Any, wanted: tuple[int, int, int], tolerance: int = 1) -> bool:
    """Whether two colours agree."""
    return all(abs(a - b) <= tolerance for a, b in zip(got, wanted, strict=True))


# --- known pixels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format_name", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 95, "subsampling": 0}, 6),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}, 6),
        ("GIF", {}, 0),
    ],
)
def test_every_format_gives_its_pixels(
    format_name: str, options: dict[str, Any], tolerance: int, tmp_path: Path
) -> None:
    """Bytes and file give the same RGB image: left half red, right half blue."""
    source = Image.new("RGB", (32, 16), RED)
    source.paste(BLUE, (16, 0, 32, 16))
    data = encoded(source, format_name, **options)
    path = tmp_path / "image"
    path.write_bytes(data)
    for form in (data, bytearray(data), memoryview(data), path, str(path), Image.open(BytesIO(data))):
        got = load_image(form, LIMIT)
        assert (got.mode, got.size) == ("RGB", (32, 16))
        assert near(got.getpixel((3, 8)), RED, tolerance)
        assert near(got.getpixel((28, 8)), BLUE, tolerance)


def palette_image() -> Image.Image:
    """Palette: 0 red, 1 green; pixels 0 1."""
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((1, 0), 1)
    return image


def of_mode(mode: str, *values: Any) -> Image.Image:
    """An image one pixel high."""
    image = Image.new(mode, (len(values), 1))
    for x, value in enumerate(values):
        image.putpixel((x, 0), value)
    return image


def with_info(image: Image.Image, **info: Any) -> Image.Image:
    """The image with entries in `info`, as Pillow's readers leave them there."""
    image.info.update(info)
    return image


IMAGES = {
    "1 bit": (of_mode("1", 0, 255), [BLACK, WHITE]),
    "grey": (of_mode("L", 0, 77, 255), [BLACK, (77, 77, 77), WHITE]),
    "16-bit": (of_mode("I;16", 0, 32768, 65535), [BLACK, (128, 128, 128), WHITE]),
    "16-bit in 32": (of_mode("I", 0, 32768, 65535), [BLACK, (128, 128, 128), WHITE]),
    "float": (of_mode("F", 0.0, 0.5, 1.0), [BLACK, (128, 128, 128), WHITE]),
    "palette": (palette_image(), [RED, GREEN]),
    "palette, index 1 transparent": (with_info(palette_image(), transparency=1), [RED, WHITE]),
    "palette, alpha per index": (with_info(palette_image(), transparency=b"\x80\x00"), [(255, 127, 127), WHITE]),
    "RGB, colour key": (with_info(of_mode("RGB", RED, GREEN), transparency=GREEN), [RED, WHITE]),
    "grey, colour key": (with_info(of_mode("L", 5, 6), transparency=6), [(5, 5, 5), WHITE]),
    "RGBA": (of_mode("RGBA", (255, 0, 0, 255), (0, 0, 0, 0), (0, 0, 0, 128)), [RED, WHITE, (127, 127, 127)]),
    "grey with alpha": (of_mode("LA", (10, 255), (10, 0), (0, 128)), [(10, 10, 10), WHITE, (127, 127, 127)]),
    "premultiplied": (of_mode("RGBA", (200, 0, 0, 128), (9, 9, 9, 0)).convert("RGBa"), [(227, 127, 127), WHITE]),
    "premultiplied grey": (of_mode("LA", (0, 128), (9, 0)).convert("La"), [(127, 127, 127), WHITE]),
    "CMYK": (of_mode("CMYK", (0, 255, 255, 0), (0, 0, 0, 255), (0, 0, 0, 0)), [RED, BLACK, WHITE]),
    "YCbCr": (of_mode("RGB", RED, BLACK, WHITE).convert("YCbCr"), [(254, 0, 0), BLACK, WHITE]),
    "HSV": (of_mode("RGB", RED, GREEN).convert("HSV"), [RED, GREEN]),
    "LAB": (of_mode("LAB", (0, 128, 128), (255, 128, 128)), [BLACK, WHITE]),
}


def state(image: Image.Image) -> tuple[Any, ...]:
    """All of an image that a conversion could spoil, the palette's alpha included."""
    palette = image.getpalette("RGBA") if image.mode == "P" else None
    return image.mode, image.size, image.tobytes(), dict(image.info), palette


@pytest.mark.parametrize("name", IMAGES)
def test_every_mode_gives_the_colours_a_viewer_shows(name: str) -> None:
    """Transparency on white, wide values scaled rather than cut off; the caller's image stays as it was."""
    image, colours = IMAGES[name]
    before = state(image)
    got = load_image(image, LIMIT)
    assert got.mode == "RGB"
    assert got is not image
    for x, colour in enumerate(colours):
        assert near(got.getpixel((x, 0)), colour), (x, got.getpixel((x, 0)))
    assert state(image) == before


def test_what_callers_do_with_theirs_afterwards() -> None:
    """Neither the image nor the array that was given shares memory with what was read."""
    image, pixels = noise(), np.asarray(noise()).copy()
    got, of_array, wanted = load_image(image, LIMIT), load_image(pixels, LIMIT), noise().tobytes()
    image.paste(RED, (0, 0, *image.size))
    pixels[:] = 0
    assert got.tobytes() == of_array.tobytes() == wanted


@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        ("16-bit", "PNG"), ("16-bit", "TIFF"), ("float", "TIFF"), ("1 bit", "PNG"), ("1 bit", "TIFF"), ("CMYK", "TIFF"),
        ("LAB", "TIFF"), ("RGBA", "PNG"), ("RGBA", "TIFF"), ("grey with alpha", "PNG"), ("palette", "BMP"),
        ("palette, index 1 transparent", "PNG"), ("palette, alpha per index", "PNG"), ("RGB, colour key", "PNG"),
        ("grey, colour key", "PNG"), ("palette, index 1 transparent", "GIF"),
    ],
)  # fmt: skip
def test_modes_survive_their_files(name: str, format_name: str) -> None:
    """The same colours after a trip through an encoded file, where other code paths of Pillow set mode and info."""
    image, colours = IMAGES[name]
    got = load_image(encoded(image, format_name, **image.info), LIMIT)
    for x, colour in enumerate(colours):
        assert near(got.getpixel((x, 0)), colour), (x, got.getpixel((x, 0)))


def test_cmyk_jpeg() -> None:
    """Adobe's inverted CMYK comes out the right way round."""
    got = load_image(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95), LIMIT)
    assert near(got.getpixel((8, 8)), RED, 4)


# Where the marked corner (0, 0) of a stored 3 x 2 image is seen, by the table of the EXIF standard.
SEEN_AT = {1: (0, 0), 2: (2, 0), 3: (2, 1), 4: (0, 1), 5: (0, 0), 6: (1, 0), 7: (1, 2), 8: (0, 2)}


@pytest.mark.parametrize("format_name", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", SEEN_AT)
def test_exif_orientation_is_applied_once(orientation: int, format_name: str) -> None:
    """From bytes and from an open image; loading the result again turns nothing."""
    stored = Image.new("RGB", (3, 2), BLACK)
    stored.putpixel((0, 0), WHITE)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(stored, format_name, exif=exif, **({"lossless": True} if format_name == "WEBP" else {}))
    for source in (data, Image.open(BytesIO(data))):
        got = load_image(source, LIMIT)
        assert got.size == ((3, 2) if orientation <= 4 else (2, 3))
        assert got.getpixel(SEEN_AT[orientation]) == WHITE
        assert sum(pixel == WHITE for pixel in pixels(got)) == 1
        assert load_image(got, LIMIT).tobytes() == got.tobytes()


def pixels(image: Image.Image) -> list[tuple[int, ...]]:
    """All pixels, row by row."""
    return [tuple(pixel) for pixel in np.asarray(image).reshape(-1, 3).tolist()]


def test_orientation_set_by_the_caller_in_memory() -> None:
    """`getexif()` of an image that never was a file counts, too."""
    image = of_mode("RGB", WHITE, BLACK)
    image.getexif()[0x0112] = 3
    assert pixels(load_image(image, LIMIT)) == [BLACK, WHITE]


def test_broken_exif_leaves_the_image_as_it_lies() -> None:
    """Bad metadata are no bad image."""
    data = encoded(of_mode("RGB", WHITE, BLACK), "PNG", exif=b"Exif\0\0garbage")
    assert pixels(load_image(data, LIMIT)) == [WHITE, BLACK]


@pytest.mark.parametrize(
    ("format_name", "options"), [("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})]
)
def test_first_frame_of_an_animation(format_name: str, options: dict[str, Any]) -> None:
    """An animation of red, green, blue gives red."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    data = encoded(frames[0], format_name, save_all=True, append_images=frames[1:], **options)
    assert load_image(data, LIMIT).getpixel((4, 4)) == RED


def test_open_animation_gives_its_current_frame() -> None:
    """An image that was moved to a frame gives that frame, and stays there."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    animation = Image.open(BytesIO(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])))
    animation.seek(1)
    assert load_image(animation, LIMIT).getpixel((4, 4)) == GREEN
    assert animation.tell() == 1


def test_one_lazily_opened_image_from_many_threads() -> None:
    """The same unread `Image.open` in several requests is read once, whole."""
    source = noise(200, 200)
    data = encoded(source, "PNG")
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            shared = Image.open(BytesIO(data))
            results = pool.map(lambda image: load_image(image, LIMIT).tobytes(), [shared] * 4)
            assert list(results) == [source.tobytes()] * 4


# --- arrays and tensors -----------------------------------------------------------------------------------------------

RGB8 = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
ARRAYS = {
    "HWC": RGB8,
    "CHW": np.moveaxis(RGB8, -1, 0),
    "not contiguous": np.repeat(RGB8, 2, axis=0)[::2],
    "read-only": np.frombuffer(RGB8.tobytes(), np.uint8).reshape(RGB8.shape),
    "16 bits": RGB8.astype(np.uint16) * 257,
    "16 bits, big-endian": (RGB8.astype(np.uint16) * 257).astype(">u2"),
    "float32": RGB8.astype(np.float32) / 255,
    "float64": RGB8 / 255,
    "opaque RGBA": np.concatenate([RGB8, np.full((5, 7, 1), 255, np.uint8)], axis=-1),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_arrays_and_tensors_of_every_layout_give_the_same_image(name: str, as_tensor: bool) -> None:
    """Layout and dtype make no difference, and the source is not changed."""
    array = ARRAYS[name]
    if as_tensor:
        source: Any = torch.from_numpy(np.array(array.astype(array.dtype.newbyteorder("="))))
        before = source.clone()
    else:
        source, before = array, array.copy()
    got = load_image(source, LIMIT)
    assert np.array_equal(np.asarray(got), RGB8)
    assert bool((source == before).all())


@pytest.mark.parametrize(
    "grey",
    [
        np.array([[0, 200]], np.uint8),
        np.array([[[0], [200]]] * 9, np.uint8),
        np.array([[[0, 200]] * 9], np.uint8),
        torch.tensor([[0, 200]], dtype=torch.uint8),
        torch.tensor([[[0, 200]]], dtype=torch.uint8),
        torch.tensor([[0.0, 200 / 255]], dtype=torch.float64),
    ],
)
def test_grey_arrays(grey: Any) -> None:
    """`[h, w]` and a single channel at either end."""
    got = load_image(grey, LIMIT)
    assert [got.getpixel((x, 0)) for x in (0, 1)] == [BLACK, (200, 200, 200)]


def test_more_dtypes() -> None:
    """bfloat16 is read through float32, a tensor that wants gradients without them, bool as black and white."""
    half = load_image(torch.full((3, 8, 8), 0.5, dtype=torch.bfloat16, requires_grad=True), LIMIT)
    assert half.getpixel((0, 0)) == (128, 128, 128)
    assert pixels(load_image(np.array([[False, True]]), LIMIT)) == [BLACK, WHITE]
    assert load_image(np.zeros((9, 9, 4), np.float32), LIMIT).getpixel((0, 0)) == WHITE


def test_sixteen_bits_are_rounded_to_the_nearest() -> None:
    """All 65536 values, against division in floating point."""
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    wanted = np.round(values / 65535 * 255)
    for source in (values, Image.fromarray(values), Image.fromarray(values.astype(np.int32))):
        assert np.array_equal(np.asarray(load_image(source, LIMIT))[..., 1], wanted)


def test_channels_at_both_ends() -> None:
    """Where both ends could be channels, arrays have them last and tensors first."""
    assert load_image(np.zeros((3, 9, 4), np.uint8), LIMIT).size == (9, 3)
    assert load_image(torch.zeros((3, 9, 4), dtype=torch.uint8), LIMIT).size == (4, 9)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (np.full((4, 4), np.nan), "not finite"),
        (np.full((4, 4), np.inf, np.float32), "not finite"),
        (np.full((8, 8, 3), 1.5), "from 0 to 1, got 1.5 to 1.5.*image_embeds"),
        (np.full((8, 8, 3), -0.1), "from 0 to 1"),
        (np.zeros((8, 8, 3), np.int64), "int64; give uint8"),
        (np.zeros((8, 8), object), "dtype object"),
        (np.zeros((8, 8), complex), "complex128"),
        (np.zeros((8, 8, 5), np.uint8), r"shape \(8, 8, 5\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), r"shape \(2, 8, 8, 3\)"),
        (np.zeros(3, np.uint8), r"shape \(3,\)"),
        (np.zeros((0, 8, 3), np.uint8), "empty"),
        (np.zeros((8, 0), np.float32), "empty"),
        (torch.zeros(8, 8, device="meta"), "dense"),
        (torch.zeros(8, 8).to_sparse(), "dense"),
        (of_mode("F", 0.0, 200.0), "from 0 to 1"),
        (of_mode("I", -1, 5), "from 0 to 65535"),
        (of_mode("I", 0, 70000), "from 0 to 65535"),
        (Image.new("RGB", (0, 5)), "empty"),
        (5, "^int "),
        ([b""], "^list "),
    ],
)
def test_wrong_values_are_refused_with_a_reason(source: Any, words: str) -> None:
    """Never cut off, never guessed."""
    with pytest.raises(MediaError, match=words):
        load_image(source, LIMIT)


# --- broken files -----------------------------------------------------------------------------------------------------

FILES = {
    "JPEG": encoded(noise(), "JPEG"),
    "JPEG progressive": encoded(noise(), "JPEG", progressive=True),
    "PNG": encoded(noise(), "PNG"),
    "GIF": encoded(noise(), "GIF"),
    "WebP": encoded(noise(), "WEBP"),
    "WebP lossless": encoded(noise(), "WEBP", lossless=True),
    "BMP": encoded(noise(), "BMP"),
    "TIFF": encoded(noise(), "TIFF"),
    "TIFF packbits": encoded(noise(), "TIFF", compression="packbits"),
}


@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_refused_wherever_they_end(name: str, tmp_path: Path) -> None:
    """Not one cut up to the last pixel gives an image, and nothing but MediaError comes out."""
    data = FILES[name]
    load_image(data, LIMIT)
    for length in {*range(1, 64), *range(64, len(data) - 16, 101), len(data) - 16}:
        with pytest.raises(MediaError):
            load_image(data[:length], LIMIT)
    path = tmp_path / "cut"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(MediaError, match=f"cut'.*truncated {name.split()[0]}"):
        load_image(path, LIMIT)


def test_truncated_file_opened_by_the_caller(tmp_path: Path) -> None:
    """Opening reads the header only; what is missing behind it is found here."""
    path = tmp_path / "cut.jpg"
    path.write_bytes(FILES["JPEG"][:-500])
    with Image.open(path) as image, pytest.raises(MediaError, match="RGB"):
        load_image(image, LIMIT)


@pytest.mark.parametrize("name", FILES)
def test_mutated_files_never_give_another_error(name: str) -> None:
    """Random bytes changed: an image or a MediaError, no third thing."""
    rng = np.random.default_rng(7)
    data = FILES[name]
    for trial in range(150):
        mutant = bytearray(data)
        for _ in range(3):
            mutant[rng.integers(0, 200 if trial % 2 else len(data))] = rng.integers(0, 256)
        with contextlib.suppress(MediaError):
            assert load_image(mutant, LIMIT).mode == "RGB"


def test_corrupt_png_is_refused() -> None:
    """A flipped bit in the pixels, which Pillow's decoder alone does not always notice."""
    data = bytearray(FILES["PNG"])
    data[data.index(b"IDAT") + 500] ^= 1
    with pytest.raises(MediaError, match="truncated PNG") as caught:
        load_image(data, LIMIT)
    assert "0x" not in str(caught.value)  # Pillow's own texts name addresses


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"BMW is a car, and this is a text", "not a JPEG, PNG, GIF, WebP, BMP or TIFF image"),
        (b"%PDF-1.7 ...", "not a JPEG, PNG, GIF, WebP, BMP or TIFF image"),
        (encoded(noise(), "PPM"), "not a JPEG"),
        (encoded(noise(), "ICO"), "not a JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a JPEG"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "not a JPEG"),
    ],
)
def test_foreign_data(data: bytes, words: str) -> None:
    """Formats that are not named are not read, whatever Pillow could do with them."""
    with pytest.raises(MediaError, match=words):
        load_image(data, LIMIT)


# --- bombs ------------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, body: bytes) -> bytes:
    """One PNG chunk."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_bomb(side: int) -> bytes:
    """A valid black PNG, one bit per pixel."""
    rows = zlib.compress(bytes((side // 8 + 1) * side))
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg_bomb(side: int) -> bytes:
    """A small JPEG whose frame header says more."""
    data = bytearray(FILES["JPEG"])
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", side, side)
    return bytes(data)


def gif_bomb(side: int) -> bytes:
    """A small GIF on a huge screen."""
    data = bytearray(FILES["GIF"])
    data[6:10] = struct.pack("<HH", side, side)
    return bytes(data)


def gif_frame_bomb(side: int) -> bytes:
    """A GIF whose frame is larger than its screen."""
    data = bytearray(FILES["GIF"])
    at = data.index(b"\x2c\0\0\0\0" + struct.pack("<HH", 40, 30)) + 5
    data[at : at + 4] = struct.pack("<HH", side, side)
    return bytes(data)


def bmp_bomb(side: int) -> bytes:
    """A small BMP whose header says more."""
    data = bytearray(FILES["BMP"])
    data[18:26] = struct.pack("<ii", side, side)
    return bytes(data)


def tiff_bomb(side: int, tags: tuple[int, ...] = (256, 257)) -> bytes:
    """A TIFF of one strip or tile that claims to be large."""
    entries = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 277: 1}
    entries |= {322: 16, 323: 16, 324: 200, 325: 64} if 322 in tags else {273: 200, 278: 8, 279: 64}
    entries |= dict.fromkeys(tags, side)
    body = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries.items()))
    return (b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + bytes(4)).ljust(264, b"\0")


def webp_bomb(side: int) -> bytes:
    """An extended WebP with a large canvas."""
    body = b"WEBPVP8X" + struct.pack("<II", 10, 2) + struct.pack("<I", side - 1)[:3] * 2
    return b"RIFF" + struct.pack("<I", len(body)) + body


BOMBS = {
    "png": png_bomb(8192),
    "jpeg": jpeg_bomb(65000),
    "gif": gif_bomb(65535),
    "gif frame": gif_frame_bomb(65535),
    "gif frame in Pillow's warning range": gif_frame_bomb(10_000),
    "bmp": bmp_bomb(30_000),
    "tiff": tiff_bomb(50_000),
    "tiff tile": tiff_bomb(32_768, (322, 323)),
    "webp": webp_bomb(16_000),
    "webp in Pillow's warning range": encoded(Image.new("RGB", (2000, 2000)), "WEBP"),
}


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reading pixels fails the test."""

    def refuse(*_: Any) -> None:
        raise KeyboardInterrupt("decoded a bomb")  # not an Exception, so that nothing takes it for bad media

    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", refuse)
        yield


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.usefixtures("no_decoding")
def test_bombs_are_refused_before_decoding(name: str) -> None:
    """By the header, whatever Pillow's own limit is; warnings would be errors here."""
    with pytest.raises(MediaTooLargeError) as caught:
        load_image(BOMBS[name], LIMIT)
    assert caught.value.expected == LIMIT
    assert str(LIMIT) in str(caught.value)


@pytest.mark.parametrize(
    "source", [np.zeros((1001, 1000), np.uint8), torch.zeros(3, 1001, 1000), Image.new("L", (1000, 1001))]
)
def test_large_arrays_and_images_are_refused_alike(source: Any) -> None:
    """With both numbers."""
    with pytest.raises(MediaTooLargeError, match="1001000 pixels") as caught:
        load_image(source, LIMIT)
    assert (caught.value.expected, caught.value.got) == (LIMIT, 1_001_000)


def test_the_limit_is_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly at the limit is fine, and Pillow's global limit neither helps nor hinders nor changes."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    data = encoded(Image.new("1", (1000, 1000)), "PNG")
    assert load_image(data, LIMIT).size == (1000, 1000)
    with pytest.raises(MediaTooLargeError):
        load_image(data, LIMIT - 1)
    assert Image.MAX_IMAGE_PIXELS == 10


# --- files ------------------------------------------------------------------------------------------------------------


def test_paths_that_are_no_images(tmp_path: Path) -> None:
    """Each with its own line."""
    text = tmp_path / "notes.txt"
    text.write_text("hello there, this is no image")
    (tmp_path / "empty.png").touch()
    secret = tmp_path / "secret.png"
    secret.write_bytes(FILES["PNG"])
    secret.chmod(0)
    with pytest.raises(MediaError, match=r"no such file: 'x\.png'"):
        load_image("x.png", LIMIT)
    with pytest.raises(MediaError, match=r"notes\.txt' .*not a JPEG"):
        load_image(text, LIMIT)
    with pytest.raises(MediaError, match=r"empty\.png' is empty"):
        load_image(tmp_path / "empty.png", LIMIT)
    with pytest.raises(MediaError, match="is a directory"):
        load_image(tmp_path, LIMIT)
    with pytest.raises(MediaError, match=r"notes\.txt/a\.png': "):
        load_image(text / "a.png", LIMIT)
    with pytest.raises(MediaError, match="not a path"):
        load_image("a\0b", LIMIT)
    with pytest.raises(MediaError, match=r"'AAAA.*\.\.\.': File name too long"):
        load_image("A" * 100_000, LIMIT)
    if os.geteuid():
        with pytest.raises(MediaError, match="Permission denied"):
            load_image(secret, LIMIT)


def test_pipes_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    """A FIFO without a writer would block an ordinary open, and this test, for ever."""
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    link = tmp_path / "link.png"
    link.symlink_to(pipe)
    for path in (pipe, link, "/dev/zero"):
        with pytest.raises(MediaError, match="regular file"):
            load_image(path, LIMIT)

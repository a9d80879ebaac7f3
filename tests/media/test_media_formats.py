"""Which file formats are accepted: all that can be decoded, or the operator's choice; by content, not by name."""

from __future__ import annotations

import struct
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image, ImageFile

from corellm.config import MEDIA_FORMATS, OPTIONAL_FORMATS, EngineConfig, MultiModalConfig
from corellm.errors import ConfigError, MediaError, MediaTooLargeError
from corellm.media.files import MAX_FILE_BYTES
from corellm.media.image import load_image
from corellm.media.pool import MediaPool
from corellm.multimodal import DataParser
from corellm_media.audio import load_audio
from extensions.media.tests.test_audio_streams import encoded, tones
from extensions.media.tests.videos import encode, plain

RATE = 16_000
KNOWN = (*MEDIA_FORMATS, *OPTIONAL_FORMATS)
FRAMES = [plain(n) for n in range(3)]


def image(format_name: str) -> bytes:
    """A small image as a file."""
    buffer = BytesIO()
    Image.fromarray(FRAMES[0]).save(buffer, format_name)
    return buffer.getvalue()


def audio(container: str) -> bytes:
    """A quarter of a second, as libsndfile writes it."""
    buffer = BytesIO()
    soundfile.write(buffer, tones(4000, RATE).T, RATE, format=container)
    return buffer.getvalue()


FILES: dict[tuple[str, str], Any] = {
    **{("image", name): lambda name=name: image(name.upper()) for name in (*MEDIA_FORMATS[:6], "avif")},
    **{("audio", name): lambda name=name: audio(name.upper()) for name in ("wav", "flac", "ogg", "mp3")},
    ("audio", "aac"): lambda: encoded("AAC", tones(20_000, 44_100)),
    ("audio", "mp4"): lambda: encoded("M4A", tones(20_000, 44_100)),
    ("audio", "mkv"): lambda: encoded("WebM, Opus", tones(20_000, 48_000)),
    ("video", "mp4"): lambda: encode(FRAMES, container="mov"),
    ("video", "mkv"): lambda: encode(FRAMES, container="matroska"),
    ("video", "avi"): lambda: encode(FRAMES, container="avi"),
    ("video", "mpegts"): lambda: encode(FRAMES, container="mpegts"),
    ("video", "gif"): lambda: image("GIF"),
}  # fmt: skip


def parse(modality: str, data: Any, formats: Any = MEDIA_FORMATS) -> Any:
    """One item, read to its end."""
    parser = DataParser(MultiModalConfig(media_formats=formats), sampling_rate=RATE)
    item = parser.parse({modality: data})[modality].get(0)
    return list(item.read()) if modality == "video" else item


def test_every_format_has_a_file_here() -> None:
    """So that the tests below leave none out."""
    assert {name for _, name in FILES} == set(KNOWN)


@pytest.mark.parametrize(("modality", "name"), FILES, ids="-".join)
def test_a_format_is_let_in_alone_or_kept_out_alone(modality: str, name: str, tmp_path: Path) -> None:
    """As bytes and as a file, whose name says nothing; the error names what is accepted."""
    data = FILES[modality, name]()
    path = tmp_path / "file.png"
    path.write_bytes(data)
    others = [other for other in KNOWN if other != name]
    for source, shown in ((data, "the (data|video)"), (path, r"'.*file\.png'")):
        assert len(np.asarray(parse(modality, source, [name])))
        with pytest.raises(MediaError, match=rf"{modality} 0: {shown} .* {name}, .*media_f"):
            parse(modality, source, others)


def test_avif_is_an_option(tmp_path: Path) -> None:
    """Refused by name without it; with it upright, as Pillow reads it, in a child process, too."""
    exif = Image.Exif()
    exif[0x112] = 6
    buffer = BytesIO()
    Image.fromarray(FRAMES[0]).save(buffer, "AVIF", exif=exif)
    data = buffer.getvalue()
    with pytest.raises(MediaError, match=r"avif, .*\(media_formats\)"):
        parse("image", data)
    with Image.open(BytesIO(data)) as image:
        expected = np.rot90(np.asarray(image.convert("RGB")), -1)
    np.testing.assert_array_equal(np.asarray(parse("image", data, ["avif"])), expected)
    config = MultiModalConfig(media_formats=["avif"])
    with closing(MediaPool(config.media_workers or 1, config.media_timeout)) as pool:
        np.testing.assert_array_equal(np.asarray(load_image(data, 10**4, ["avif"], pool)), expected)


@pytest.mark.parametrize("end", [16, 60, 200, -200, -1])
def test_a_truncated_avif(end: int) -> None:
    """Is broken, not partly black."""
    with pytest.raises(MediaError, match="AVIF"):
        load_image(image("AVIF")[:end], 10**4, ["avif"])


def test_an_avif_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size that the header declares is checked before any pixel is decoded."""
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    data = image("AVIF")
    at = data.index(b"ispe") + 8
    with pytest.raises(MediaTooLargeError, match="12000 x 12000"):
        load_image(data[:at] + struct.pack(">II", 12_000, 12_000) + data[at + 8 :], 10**6, ["avif"])


def test_what_is_no_file_is_always_let_in() -> None:
    """Arrays, samples and open images."""
    assert parse("image", FRAMES[0], []).size == (64, 48)
    assert parse("image", Image.open(BytesIO(image("PNG"))), []).size == (64, 48)
    assert len(parse("video", np.stack(FRAMES), [])) == 3
    assert len(parse("audio", (np.zeros(100), RATE), [])) == 100


def test_names_that_are_none() -> None:
    """Typed errors that list the known ones."""
    with pytest.raises(ConfigError, match=r"'jpg'; .*jpeg, png, gif, .*mpegts.*, aac, avif"):
        EngineConfig.from_kwargs(model="demo", media_formats=["png", "jpg"])
    with pytest.raises(ConfigError, match=r"media_formats .* got 'png'"):
        MultiModalConfig(media_formats="png")


@pytest.mark.parametrize("start", [b"\xff\xd8\xff", b"RIFF\0\0\0\0WAVE", b"\0\0\0\x20ftypM4A "])
def test_a_file_is_read_up_to_a_size(tmp_path: Path, start: bytes) -> None:
    """Also where the readers are called with a path; nothing of a larger file is read."""
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.write(start)
        stream.truncate(MAX_FILE_BYTES + 1)
    for load in (lambda: load_image(path, 10**6), lambda: load_audio(path, RATE, 60)):
        with pytest.raises(MediaTooLargeError, match=f"{MAX_FILE_BYTES + 1} bytes"):
            load()

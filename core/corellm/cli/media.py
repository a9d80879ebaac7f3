"""Files on the command line: which words are media, of which modality, and whether they can be read.

Reading is the core's own (`multimodal.parsing`), so that what is accepted here is what requests accept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corellm.config import MEDIA_FORMATS, MultiModalConfig
from corellm.errors import MediaError, MissingExtraError, RequestError

SUFFIXES = {
    "image": {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif"},
    "video": {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".wmv"},
    "audio": {".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".wma"},
}
"""A word with such an ending is taken for a file even if there is none, so that a wrong name is reported. A GIF is an
image, unless given as `--video`.
"""

_SAMPLING_RATE = 16_000  # of audio that is only checked here


@dataclass(frozen=True)
class MediaFile:
    """An image, video or audio file of a prompt."""

    path: str
    modality: str
    about: str
    """Its size or length, as text."""

    @property
    def part(self) -> dict[str, Any]:
        """As a part of a chat message."""
        return {"type": self.modality, self.modality: self.path}


def by_modality(files: Sequence[MediaFile]) -> dict[str, list[str]]:
    """As `multi_modal_data` takes them."""
    data: dict[str, list[str]] = {}
    for file in files:
        data.setdefault(file.modality, []).append(file.path)
    return data


def sort_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell files from text: what exists, ends like media, or looks like a path."""
    files = [word for word in words if is_path(word) or (" " not in word and modality_of(word))]
    return files, [word for word in words if word not in files]


def is_path(word: str) -> bool:
    """Whether there is a file of that name, or the word looks like a path, as of a folder within another."""
    try:
        if word and (Path(word).is_file() or ("/" in word and Path(word).is_dir())):
            return True
    except (OSError, ValueError):  # a whole question is too long for a name
        return False
    return " " not in word and (word.startswith(("./", "../", "/", "~/")) or word.endswith("/"))


def modality_of(name: str) -> str | None:
    """The modality that a file's ending tells; None if it tells none."""
    suffix = Path(name).suffix.lower()
    return next((modality for modality, suffixes in SUFFIXES.items() if suffix in suffixes), None)


def open_file(name: str, modality: str | None = None, formats: Collection[str] = MEDIA_FORMATS) -> MediaFile:
    """Open a media file after reading it once, so that a wrong file is reported before a model is loaded.

    Args:
        name: of the file; `~` is expanded.
        modality: None to detect it by the name's ending, else by the content.
        formats: allowed ones.

    Raises:
        RequestError: what is wrong with it.
    """
    if name.startswith(("http://", "https://")):
        raise RequestError(f"remote URLs are not fetched; download {name} and give the file's path")
    path = Path(name).expanduser()
    known = modality or modality_of(name)
    reasons: list[Exception] = []
    for candidate in [known] if known else SUFFIXES:
        try:
            return MediaFile(str(path), candidate, _read(path, candidate, formats))
        except (MediaError, MissingExtraError) as error:
            reasons.append(error)
    if len(reasons) == 1 or not path.is_file():
        named = "" if path.name in str(reasons[0]) else f"{name}: "
        raise RequestError(f"{named}{reasons[0]}") from reasons[0]
    raise RequestError(
        f"{name!r} is no image (JPEG, PNG, GIF, WebP, BMP, TIFF), video (MP4, MOV, MKV, WebM, AVI, MPEG-TS, GIF) or "
        f"audio file (WAV, FLAC, Ogg, MP3, AAC, M4A) that can be read"
    ) from reasons[0]


def _read(path: Path, modality: str, formats: Collection[str]) -> str:
    """Read a file; returns its size or length, as text."""
    from corellm.multimodal.parsing import DataParser

    limits = MultiModalConfig(media_formats=formats)
    item = DataParser(limits, sampling_rate=_SAMPLING_RATE).modality_parsers()[modality].load(path)
    if modality == "image":
        return f"{item.width} x {item.height}"
    if modality == "audio":
        return f"{len(item) / _SAMPLING_RATE:.1f} s"
    about = f"{item.metadata.width} x {item.metadata.height}, {item.metadata.total_num_frames} frames"
    return about + (f", {item.metadata.duration:.1f} s" if item.metadata.duration else "")

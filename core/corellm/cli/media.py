"""Files on the command line: which words are media, of which modality, and whether they can be read.

A word is a file, a folder (its media files, in the order of their names) or `-` (standard input). Reading is the core's
own (`multimodal.parsing`), so that what is accepted here is what requests accept.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corellm.config import MultiModalConfig
from corellm.errors import MediaError, MissingExtraError, RequestError
from corellm.media.files import MAX_FILE_BYTES, FileContent, is_remote

SUFFIXES = {
    "image": {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif"},
    "video": {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".wmv"},
    "audio": {".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".wma"},
}
"""A word with such an ending is taken for a file even if there is none, so that a wrong name is reported. A GIF is an
image, unless given as `--video`.
"""

STANDARD_INPUT = "-"
"""The word for a file that is piped in."""

MOST_OF_A_FOLDER = 64
"""Items of one modality that a folder gives to one request, unless `limit_mm_per_prompt` says otherwise: a folder of
thousands is a mistake, which would be noticed only after all of them are read."""

_SAMPLING_RATE = 16_000  # of audio that is only checked here


@dataclass(frozen=True)
class MediaFile:
    """An image, video or audio file of a prompt."""

    path: str
    """`-` for standard input."""
    modality: str
    about: str
    """Its size or length, as text."""
    content: bytes | None = field(default=None, repr=False)
    """What was read from standard input; None for a file, which is read from its path."""

    @property
    def source(self) -> str | bytes:
        """Its path or content, as prompts take it."""
        return self.path if self.content is None else self.content

    @property
    def part(self) -> dict[str, Any]:
        """The part of a chat message for it."""
        return {"type": self.modality, self.modality: self.source}


def by_modality(files: Sequence[MediaFile]) -> dict[str, list[str | bytes]]:
    """Files by modality, as `multi_modal_data` takes them."""
    data: dict[str, list[str | bytes]] = {}
    for file in files:
        data.setdefault(file.modality, []).append(file.source)
    return data


def sort_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell files and folders from text: what exists, ends like media, or looks like a path."""
    files = [word for word in words if is_path(word) or (" " not in word and modality_of(word))]
    return files, [word for word in words if word not in files]


def is_path(word: str) -> bool:
    """Whether there is a file or folder of that name, or the word looks like a path, or is `-`."""
    try:
        if word == STANDARD_INPUT or (word and (Path(word).is_file() or Path(word).is_dir())):
            return True
    except (OSError, ValueError):  # a whole question is too long for a name
        return False
    return " " not in word and (word.startswith(("./", "../", "/", "~/")) or word.endswith("/"))


def modality_of(name: str) -> str | None:
    """The modality that a file's ending tells; None if it tells none."""
    suffix = Path(name).suffix.lower()
    return next((modality for modality, suffixes in SUFFIXES.items() if suffix in suffixes), None)


def files_of(name: str, modality: str | None = None, limits: Mapping[str, int] | None = None) -> list[str]:
    """The media files in a folder, in the order of their names; `[name]` if it is no folder.

    Hidden files, folders within the folder, and files whose names do not end like media are left out.

    Args:
        name: `~` is expanded.
        modality: of the files to take; None for all.
        limits: most files of a modality; None for no limit at all.

    Raises:
        RequestError: the folder has no media, or more than the limits, or cannot be read.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return [name]
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise RequestError(f"cannot read the folder {name!r}: {error.strerror}") from error
    found = {path: kind for path in paths if (kind := modality_of(path.name)) and modality in (None, kind)}
    if not found:
        wanted = f"{modality} files" if modality else "images, videos or audio files"
        endings = sorted(SUFFIXES[modality]) if modality else (".png", ".jpg", ".mp4", ".wav", "...")
        way_out = "name one that has, or a file"
        if modality is None:
            way_out += f"; if {name!r} is the question, ask in more words"
        raise RequestError(f"the folder {name!r} has no {wanted} ({', '.join(endings)}); {way_out}")
    for kind in SUFFIXES if limits is not None else ():
        count, most = list(found.values()).count(kind), (limits or {}).get(kind, MOST_OF_A_FOLDER)
        if count > most:
            raise RequestError(
                f"the folder {name!r} has {count} {kind} files, more than the {most} that one request takes; name "
                f"those you mean, or allow more: --limit-mm-per-prompt '{{\"{kind}\": {count}}}'"
            )
    return [str(path) for path in found]


def open_files(name: str, modality: str | None, limits: MultiModalConfig) -> list[MediaFile]:
    """Open a media file, all those in a folder, or standard input; see `files_of` and `open_file`."""
    return [open_file(file, modality, limits) for file in files_of(name, modality, limits.item_limits)]


def open_file(name: str, modality: str | None = None, limits: MultiModalConfig | None = None) -> MediaFile:
    """Open a media file after reading it once, so that a wrong file is reported before a model is loaded.

    Args:
        name: of the file; `~` is expanded. `-` for standard input, which is read to its end.
        modality: None to detect it by the name's ending, else by the content.
        limits: how large it may be, and which formats are allowed; None for the defaults.

    Raises:
        RequestError: what is wrong with it.
    """
    if is_remote(name):
        raise RequestError(f"remote URLs are not fetched; download {name} and give the file's path")
    content = _read_standard_input() if name == STANDARD_INPUT else None
    path, known = Path(name).expanduser(), modality or modality_of(name)
    reasons: list[Exception] = []
    for candidate in [known] if known else SUFFIXES:
        try:
            about = _about(path if content is None else content, candidate, limits)
            return MediaFile(str(path), candidate, about, content)
        except (MediaError, MissingExtraError) as error:
            reasons.append(error)
    shown = repr(name) if content is None else content.path
    if len(reasons) == 1 or (content is None and not path.is_file()):
        named = "" if path.name in str(reasons[0]) else f"{shown}: "
        raise RequestError(f"{named}{reasons[0]}") from reasons[0]
    raise RequestError(
        f"{shown} is no image (JPEG, PNG, GIF, WebP, BMP, TIFF), video (MP4, MOV, MKV, WebM, AVI, MPEG-TS, GIF) or "
        f"audio file (WAV, FLAC, Ogg, MP3, AAC, M4A) that can be read"
    ) from reasons[0]


def _read_standard_input() -> FileContent:
    """What is piped in.

    Raises:
        RequestError: it is a terminal, empty, already read, or too large.
    """
    content = FileContent() if sys.stdin.isatty() else FileContent(sys.stdin.buffer.read(MAX_FILE_BYTES + 1))
    content.path = "standard input"
    if not content:
        raise RequestError("- is the file on standard input, which has none; pipe one in, as in: ... - < image.png")
    if len(content) > MAX_FILE_BYTES:
        raise RequestError(f"the file on standard input has more than the {MAX_FILE_BYTES} bytes allowed")
    return content


def _about(source: Path | bytes, modality: str, limits: MultiModalConfig | None) -> str:
    """Read a file; returns its size or length, as text."""
    from corellm.multimodal.parsing import DataParser

    item = DataParser(limits, sampling_rate=_SAMPLING_RATE).modality_parsers()[modality].load(source)
    if modality == "image":
        return f"{item.width} x {item.height}"
    if modality == "audio":
        return f"{len(item) / _SAMPLING_RATE:.1f} s"
    about = f"{item.metadata.width} x {item.metadata.height}, {item.metadata.total_num_frames} frames"
    return about + (f", {item.metadata.duration:.1f} s" if item.metadata.duration else "")

"""Images from URLs and files, and items as base64 and `data:` URLs, for prompts and messages.

Knows how media are named and written; decoding is the core's.
"""

from __future__ import annotations

import base64
import io
import wave
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np

from corellm.config import MultiModalConfig
from corellm.errors import InvalidParameterError, MediaError, MissingExtraError, install_hint
from corellm.media.files import is_remote, read_url
from corellm.media.image import load_image
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.names import FETCH_ARGUMENTS
from corellm_vllm.absent.table import takes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image


@takes(FETCH_ARGUMENTS)
def fetch_image(image_url: str, *, image_mode: str = "RGB") -> Image.Image:
    """Return the image of a URL, `http:`, `https:`, `file:` or `data:`, or of a path.

    Raises:
        MediaError: it cannot be fetched (private addresses never are), or is no image.
        MissingExtraError: the HTTP library is not installed.
    """
    return load_image(_content(image_url), MultiModalConfig().max_image_pixels).convert(image_mode)


def _content(url: str) -> str | bytes:
    """Return the bytes of a URL's file, or the path of a local one.

    Raises:
        InvalidParameterError: it is no text.
        MediaError: a malformed URL, or one that cannot be fetched.
    """
    if not isinstance(url, str):
        raise InvalidParameterError(f"a URL is text, got {type(url).__name__}", param="image_url")
    if is_remote(url):
        return _fetched(url)
    if url[:7].lower() != "file://":
        return read_url(url)
    named = urlsplit(url)
    if named.netloc not in ("", "localhost"):
        raise MediaError(f"{url!r:.200} names another machine; a file: URL is file:// and an absolute path")
    return unquote(named.path)


def _fetched(url: str) -> bytes:
    """Return the file of a URL, whose host the script allows by naming it."""
    from corellm.fetch_settings import FetchSettings

    try:
        from corellm_server.fetching.remote_media import RemoteMedia
        from corellm_server.fetching.url import parse_url
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"URLs are fetched by {install_hint('server')}") from error

    messages = [{"role": "user", "content": [{"type": "image", "image": url}]}]
    target = parse_url(url)
    remote = RemoteMedia(FetchSettings(allowed_media_domains=[target.at(target.host)]))
    try:
        remote.load(messages)
    finally:
        remote.close()
    content: bytes = messages[0]["content"][0]["image"]  # type: ignore[index]
    return content


@takes({})
def encode_image_base64(image: Image.Image, *, image_mode: str = "RGB", format: str = "PNG") -> str:
    """Return a file of an image as base64."""
    written = io.BytesIO()
    try:
        image.convert(image_mode).save(written, format)
    except (KeyError, OSError, ValueError) as error:  # as Pillow says it
        told = f"the image cannot be written with image_mode={image_mode!r}, format={format!r}: {error}"
        raise InvalidParameterError(told, param="format") from error
    return base64.b64encode(written.getvalue()).decode()


@takes({})
def encode_image_url(image: Image.Image, *, image_mode: str = "RGB", format: str = "PNG") -> str:
    """Return a `data:` URL of an image."""
    return f"data:image/{format.lower()};base64,{encode_image_base64(image, image_mode=image_mode, format=format)}"


@takes({})
def encode_audio_base64(audio: NDArray[np.float32], sampling_rate: float, *, format: str = "WAV") -> str:
    """Return a WAV file of samples as base64.

    Raises:
        InvalidParameterError: another format.
    """
    if format.upper() != "WAV":
        raise InvalidParameterError(f"audio is written as WAV, not as {format!r:.40}", param="format")
    return base64.b64encode(wav_file(audio, int(sampling_rate))).decode()


@takes({})
def encode_audio_url(audio: NDArray[np.float32], sampling_rate: float, *, format: str = "WAV") -> str:
    """Return a `data:` URL of samples."""
    return f"data:audio/wav;base64,{encode_audio_base64(audio, sampling_rate, format=format)}"


def wav_file(samples: Any, rate: int) -> bytes:
    """Return a WAV file of mono samples from -1 to 1, with 16 bits each."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setparams((1, 2, rate, len(samples), "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return written.getvalue()


__all__ = ["encode_audio_base64", "encode_audio_url", "encode_image_base64", "encode_image_url", "fetch_image"]
__getattr__ = exports(__name__)

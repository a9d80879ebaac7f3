"""From `multi_modal_data` as the user gives it to items: split, counted, checked, decoded.

Knows which keys and types a request may have; `image`, `frames` and a `media_reader` read one item each. Counting
opens nothing, so limits can be checked first. Strings are paths: a server gives this parser bytes, never a client's
strings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from corellm.config import MultiModalConfig
from corellm.errors import (
    ContractError,
    EmbeddingInputError,
    MediaError,
    MultiModalError,
    UnsupportedModalityError,
)
from corellm.media.files import encoded_bytes, read_url
from corellm.media.frames import is_frame, is_frames_and_metadata, load_frames
from corellm.media.type_checks import is_array, is_tensor
from corellm.multimodal.items import (
    EmbeddingItems,
    EncodedItem,
    GivenEmbeddings,
    MediaItems,
    ModalityItems,
    MultiModalItems,
    UuidItem,
    name_item_in_errors,
)
from corellm.multimodal.media_reader import media_reader

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from corellm.media.pool import MediaPool
    from corellm.media.video import Video

_EMBEDS = "_embeds"
_CHANNELS = frozenset({1, 3, 4})
_IMAGE_DTYPES = frozenset({"torch.uint8", "torch.uint16", "torch.bool"})
_EMBEDDING_DTYPES = ("torch.float32", "torch.bfloat16", "torch.float16", "torch.float64")


@dataclass(frozen=True)
class RawItems:
    """One modality's items as they were given: counted, but neither read nor checked."""

    values: Sequence[Any]
    are_embeddings: bool = False


@dataclass(frozen=True)
class ModalityParser:
    """How one modality is read."""

    split: Callable[[Any], RawItems]
    """The value under the modality's key to raw items. Cheap: opens and decodes nothing."""
    load: Callable[[Any], Any]
    """One raw item to decoded media, which identify it: items of equal media have the same embeddings. Raises
    `MediaError`, to which the parser adds modality and item."""
    encoded: Callable[[Any], bytes | None] = lambda value: None
    """The bytes of a raw item that is a file, None for any other. The bytes identify the item, and `load` decodes
    them on first use."""


class DataParser:
    """Reads a request's media and precomputed embeddings.

    A plugin whose media need more extends `modality_parsers` in a subclass, and returns that from `get_data_parser`.

    Args:
        limits: how large media may be; larger media are refused before they are decoded. None for the defaults.
        hidden_size: width that precomputed embeddings must have; None if it is not known.
        sampling_rate: samples per second of audio after reading, or a function that returns it, called on the first
            audio item; None for models without audio.
    """

    def __init__(
        self,
        limits: MultiModalConfig | None = None,
        *,
        hidden_size: int | None = None,
        sampling_rate: int | Callable[[], int] | None = None,
    ) -> None:
        self.limits = limits or MultiModalConfig()
        self.hidden_size = hidden_size
        self.sampling_rate = sampling_rate
        self.pool: MediaPool | None = None
        """Decodes files, in an engine; else they are decoded in this process."""

    def modality_parsers(self) -> dict[str, ModalityParser]:
        """`{modality: its parser}`. Each accepts precomputed embeddings under `<modality>_embeds`, too."""
        return {
            "image": ModalityParser(self.split_images, self.load_image, self._encoded("load_image")),
            "video": ModalityParser(self.split_videos, self.load_video),
            "audio": ModalityParser(self.split_audio, self.load_audio, self._encoded("load_audio")),
        }

    def _encoded(self, load: str) -> Callable[[Any], bytes | None]:
        """How files are recognized; never, where a subclass reads the modality itself."""
        own = getattr(type(self), load) is not getattr(DataParser, load)
        return (lambda value: None) if own else encoded_bytes

    @cached_property
    def _parsers(self) -> dict[str, ModalityParser]:
        return self.modality_parsers()

    @cached_property
    def _accepted(self) -> dict[str, str]:
        """`{key of multi_modal_data: its modality}`."""
        return {key: modality for modality in self._parsers for key in (modality, modality + _EMBEDS)}

    def count(self, mm_data: Mapping[str, Any]) -> dict[str, int]:
        """`{modality: number of items}`, without opening or decoding any.

        Raises:
            UnsupportedModalityError: an unknown key.
            MultiModalError: both media and embeddings of one modality; embeddings of a wrong kind or rank.
        """
        return {modality: len(raw.values) for modality, raw in self._split(mm_data).items()}

    def parse(self, mm_data: Mapping[str, Any]) -> MultiModalItems:
        """Return all items of a request. The input is not changed; embeddings are copied.

        Args:
            mm_data: `{"image": ...}` with one image or a list of them: PIL image, array or tensor (see
                `image.load_image`; rank 4 is a batch), path, `data:` URL, encoded bytes. Or `{"image_embeds": ...}`
                with a torch tensor `[items, tokens, hidden]` or a list of `[tokens, hidden]`; these are recognised
                under `"image"`, too, unless they might be images. None under a key is the same as no key.
                A `UuidItem` in a list stays as it is.
                `{"video": ...}` with one video or a list of them: path, `data:` URL, encoded bytes, frames, or
                `(frames, metadata)` (see `frames.load_frames`; a list of images is one video, rank 5 a batch).
                `{"audio": ...}` with one item or a list of them: path, `data:` URL, encoded bytes, `(samples, rate)`,
                or an array or tensor at the model's rate.

        Raises:
            UnsupportedModalityError: an unknown key.
            MediaError: an item that cannot be read; `modality` and `item` say which.
            EmbeddingInputError: embeddings of a wrong kind, rank, width or dtype, empty, or not finite.
            MultiModalError: both media and embeddings of one modality.
        """
        items = MultiModalItems()
        for modality, raw in self._split(mm_data).items():
            items[modality] = self._read(modality, raw, self._parsers[modality])
        return items

    def split_images(self, value: Any) -> RawItems:
        """Images, or embeddings where the value can be nothing else."""
        if isinstance(value, (list, tuple)):
            flat = [_may_be_embeddings(element) and element.ndim == 2 for element in value]
            if any(flat) and not all(flat):
                _refuse_ambiguous(flat.index(True), value[flat.index(True)])
            return RawItems(value, are_embeddings=any(flat))
        if (is_array(value) or is_tensor(value)) and value.ndim == 4:
            return RawItems(tuple(value))
        if _may_be_embeddings(value):
            if value.ndim == 2:
                _refuse_ambiguous(0, value)
            channels_possible = bool(_CHANNELS & {value.shape[0], value.shape[-1]})
            if value.ndim == 3 and (value.shape[-1] == self.hidden_size or not channels_possible):
                return split_embeddings("image", value)
        return RawItems((value,))

    def load_image(self, value: Any) -> Image.Image:
        """One image, in RGB.

        Raises:
            MediaError: see `image.load_image`; also URLs other than `data:`, which are not fetched here.
        """
        from corellm.media.image import load_image

        source = read_url(value) if isinstance(value, str) else value
        return load_image(source, self.limits.max_image_pixels, self.limits.media_formats, self.pool)

    def split_videos(self, value: Any) -> RawItems:
        """Videos: a list of frames is one, a list of anything else several.

        Raises:
            MediaError: a list of both.
        """
        if (is_array(value) or is_tensor(value)) and value.ndim == 5:
            return RawItems(tuple(value))
        if not isinstance(value, (list, tuple)) or is_frames_and_metadata(value):
            return RawItems((value,))
        frames = [is_frame(element) for element in value]
        if any(frames) and not all(frames):
            raise MediaError(
                f"video: a list of frames is one video, but of this one only some elements are frames (number "
                f"{frames.index(True)} is, number {frames.index(False)} is not); put each video's frames in a list",
                modality="video",
            )
        return RawItems((value,) if any(frames) else value)

    def load_video(self, value: Any) -> Video:
        """One video, whose frames are decoded on demand.

        Raises:
            MediaError: see `frames.load_frames`; a file that is no video, or broken; also URLs other than `data:`,
                which are not fetched here.
            MissingExtraError: a file needs corellm-media.
        """
        source = read_url(value) if isinstance(value, str) else value
        if isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)):
            return media_reader("a video in a file").load_video(source, self.limits, self.pool)
        return load_frames(source, self.limits)

    def split_audio(self, value: Any) -> RawItems:
        """Audio: a list is several items, `(samples, rate)` is one."""
        return RawItems(value if isinstance(value, (list, tuple)) and not is_samples_and_rate(value) else (value,))

    def load_audio(self, value: Any) -> np.ndarray[Any, Any]:
        """One audio item, `[num_samples]` float32 at the model's sampling rate.

        Raises:
            MediaError: no audio, or broken; also URLs other than `data:`, which are not fetched here.
            ContractError: this parser was made without a sampling rate.
            MissingExtraError: audio needs corellm-media.
        """
        rate = self.sampling_rate() if callable(self.sampling_rate) else self.sampling_rate
        if rate is None:
            raise ContractError("get_data_parser: a DataParser for audio needs a sampling_rate")
        source = read_url(value) if isinstance(value, str) else value
        limits = self.limits
        return media_reader("audio").load_audio(source, rate, limits.max_audio_seconds, limits.media_formats, self.pool)

    def _split(self, mm_data: Mapping[str, Any]) -> dict[str, RawItems]:
        if not isinstance(mm_data, Mapping):
            raise MultiModalError(
                f'multi_modal_data must be a dict such as {{"image": image}}, got {type(mm_data).__name__}'
            )
        parsers, accepted = self._parsers, self._accepted
        split: dict[str, RawItems] = {}
        for key, value in mm_data.items():
            modality = accepted.get(key)
            if modality is None:
                raise UnsupportedModalityError(
                    f"unknown modality {key!r} in multi_modal_data; accepted: {', '.join(accepted)}",
                    modality=str(key), expected=tuple(accepted), got=key,
                )  # fmt: skip
            if value is None:
                continue
            if modality in split:
                raise MultiModalError(
                    f"{modality}: give either {modality!r} or {modality + _EMBEDS!r}, not both", modality=modality
                )
            if key == modality and not _are_marked(modality, value):
                split[modality] = parsers[modality].split(value)
            else:
                split[modality] = split_embeddings(modality, value)
        return split

    def _read(self, modality: str, raw: RawItems, parser: ModalityParser) -> ModalityItems:
        if raw.are_embeddings:
            checked = [check_embedding(modality, i, value, self.hidden_size) for i, value in enumerate(raw.values)]
            return EmbeddingItems(modality, checked)
        return MediaItems(modality, [_read_item(modality, i, value, parser) for i, value in enumerate(raw.values)])


def is_samples_and_rate(value: Any) -> bool:
    """Whether a value is `(samples, rate)`."""
    return isinstance(value, tuple) and len(value) == 2 and not isinstance(value[1], bool) and _is_number(value[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "dtype") and getattr(value, "ndim", None) == 0)


def split_embeddings(modality: str, value: Any) -> RawItems:
    """Precomputed embeddings, one item each.

    Raises:
        EmbeddingInputError: neither a tensor `[items, tokens, hidden]` nor a list.
    """
    if isinstance(value, (list, tuple)):
        given = [one.tensor if isinstance(one, GivenEmbeddings) else one for one in value]
        return RawItems(given, are_embeddings=True)
    expected = "a torch tensor [items, tokens, hidden] or a list of [tokens, hidden]"
    got = f"shape {tuple(value.shape)}" if is_tensor(value) else f"a {type(value).__name__}"
    if not is_tensor(value) or value.ndim != 3:
        raise EmbeddingInputError(
            f"{modality}_embeds: expected {expected}, got {got}", modality=modality, expected=expected, got=got
        )
    _require_dense(modality, None, value)
    return RawItems(tuple(value), are_embeddings=True)


def check_embedding(modality: str, item: int, value: Any, hidden_size: int | None) -> Any:
    """Return a checked copy of one item's embeddings `[tokens, hidden]`, without autograd history.

    Raises:
        EmbeddingInputError: names modality, item, expected and got.
    """

    def require(condition: bool, what: str, expected: Any, got: Any) -> None:
        if not condition:
            raise EmbeddingInputError(
                f"{modality} {item}: embeddings: expected {what} {expected}, got {got}".replace("  ", " "),
                modality=modality, item=item, expected=expected, got=got,
            )  # fmt: skip

    require(is_tensor(value), "a", "torch.Tensor", type(value).__name__)
    _require_dense(modality, item, value)
    shape = tuple(value.shape)
    require(value.ndim == 2, "a tensor of rank", "2, [tokens, hidden]", f"shape {shape}")
    require(shape[0] > 0, "tokens:", "at least 1", shape[0])
    if hidden_size is None:
        require(shape[1] > 0, "hidden size:", "at least 1", shape[1])
    else:
        require(shape[1] == hidden_size, "the model's hidden size", hidden_size, shape[1])
    require(str(value.dtype) in _EMBEDDING_DTYPES, "dtype", " or ".join(_EMBEDDING_DTYPES), str(value.dtype))
    require(bool(value.isfinite().all()), "", "finite values", "NaN or infinity")
    return value.detach().clone()  # a copy: callers may change theirs, and this one is cached


def _are_marked(modality: str, value: Any) -> bool:
    """Whether a list holds `GivenEmbeddings`.

    Raises:
        MultiModalError: beside media.
    """
    marked = [isinstance(one, GivenEmbeddings) for one in value] if isinstance(value, list) else []
    if any(marked) and not all(marked):
        raise MultiModalError(
            f"{modality}: give either {modality!r} or {modality + _EMBEDS!r}, not both", modality=modality
        )
    return any(marked)


def _require_dense(modality: str, item: int | None, value: Any) -> None:
    if str(value.layout) != "torch.strided" or value.is_quantized or value.is_nested or value.device.type == "meta":
        name = modality if item is None else f"{modality} {item}"
        raise EmbeddingInputError(
            f"{name}: embeddings: expected a dense tensor that holds values, got layout {value.layout} on "
            f"{value.device}",
            modality=modality, item=item, expected="torch.strided", got=str(value.layout),
        )  # fmt: skip


def _may_be_embeddings(value: Any) -> bool:
    return is_tensor(value) and str(value.dtype) not in _IMAGE_DTYPES


def _refuse_ambiguous(item: int, value: Any) -> NoReturn:
    raise EmbeddingInputError(
        f"image {item}: a {value.dtype} tensor of shape {tuple(value.shape)} may be a grey image or embeddings; give "
        "embeddings as a list under 'image_embeds', an image as [1, height, width]",
        modality="image", item=item, got=tuple(value.shape),
    )  # fmt: skip


def _read_item(modality: str, item: int, value: Any, parser: ModalityParser) -> Any:
    with name_item_in_errors(modality, item):
        if value is None:
            raise MediaError(f"None in place of {modality} data; leave it out of the list, or give its uuid")
        if isinstance(value, UuidItem):
            return value
        content = parser.encoded(value)
        return parser.load(value) if content is None else EncodedItem(content, parser.load)

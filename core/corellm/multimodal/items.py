"""The parsed media of one request, by modality.

Knows containers and the kinds of value that media come in, without importing the libraries that define them; it knows
neither how media are read (`parsing`, `image`) nor what becomes of them (`processor`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from corellm.errors import ItemNotCachedError, MultiModalError, PromptTooLongError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image


@contextmanager
def naming_item(modality: str, item: int) -> Iterator[None]:
    """Whatever is found wrong with an item meanwhile is said of item `item`."""
    try:
        yield
    except (MultiModalError, PromptTooLongError) as error:
        if not isinstance(error, MultiModalError):
            error.args = (f"{modality} {item}: {error}",)
        elif error.item is None:
            error.args = (f"{modality} {item}: {error}",)
            error.modality, error.item = modality, item
        raise


class EncodedItem:
    """An item as the bytes of a file, by which it is known: decoded when it is first asked for, so that what is cached
    need not be decoded at all.
    """

    def __init__(self, content: bytes, decode: Callable[[bytes], Any]) -> None:
        self.content, self._decode = content, decode
        self._lock = threading.Lock()  # of its own: functools' `cached_property` has one for all in Python 3.11
        self._media: list[Any] = []

    @property
    def media(self) -> Any:
        """The decoded media.

        Raises:
            MediaError: they are broken.
        """
        with self._lock:
            if not self._media:
                self._media.append(self._decode(self.content))
            return self._media[0]


class StoredItem:
    """An item of which only its uuid came: tensors made of it for an earlier request are cached, or it is refused."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    @property
    def media(self) -> NoReturn:
        """There are none.

        Raises:
            ItemNotCachedError: always.
        """
        raise ItemNotCachedError(
            f"only its uuid {self.uuid!r:.100} came, and it is not cached for this cache_salt and these processor "
            "arguments; send it with its data"
        )


class ModalityItems:
    """The items of one modality, in the order they were given.

    Attributes:
        modality: `"image"`, `"video"` or `"audio"`.
    """

    def __init__(self, modality: str, items: Sequence[Any]) -> None:
        self.modality = modality
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.modality!r}, {self.count} items)"

    @property
    def count(self) -> int:
        """How many items there are."""
        return len(self)

    def get(self, index: int) -> Any:
        """Item `index`. Shared, not copied: read it, never write to it.

        Raises:
            MediaError: it is a file that turns out to be broken.
            ItemNotCachedError: only its uuid came (see `is_stored`).
        """
        item = self._items[index]
        if not isinstance(item, (EncodedItem, StoredItem)):
            return item
        with naming_item(self.modality, index):
            return item.media

    def is_stored(self, index: int) -> bool:
        """Whether item `index` came as its uuid alone, so that there are no media to `get`."""
        return isinstance(self._items[index], StoredItem)

    def content(self, index: int) -> Any:
        """What item `index` is known by: the bytes of its file, else what `get` gives."""
        item = self._items[index]
        return item.content if isinstance(item, EncodedItem) else item

    def num_embeddings(self, index: int) -> int | None:
        """How many embeddings item `index` brings along; None if its encoder has yet to make them."""
        raise NotImplementedError


class MediaItems(ModalityItems):
    """Media that were read. Files of images and sounds are decoded when they are asked for.

    An image is a `PIL.Image.Image` in mode RGB, upright, without metadata; a video a `Video`, whose frames are decoded
    when they are asked for; a sound an array `[num_samples]`, float32, at the model's sampling rate.
    """

    def num_embeddings(self, index: int) -> None:
        """None: the encoder makes them."""
        return


class EmbeddingItems(ModalityItems):
    """Embeddings made outside, one floating-point tensor `[tokens, hidden]` per item; they skip the encoder."""

    def num_embeddings(self, index: int) -> int:
        """The tokens of item `index`."""
        return int(self._items[index].shape[0])


class MultiModalItems(dict[str, ModalityItems]):
    """`{modality: its items}` of one request. A modality that was given as an empty list is there, with no items."""

    def get_counts(self) -> dict[str, int]:
        """`{modality: number of items}`."""
        return {modality: len(items) for modality, items in self.items()}


def _is_loaded_instance(value: object, module: str, name: str) -> bool:
    """`isinstance` that imports nothing: there is no value of a class whose module nobody has imported."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether `value` is a `torch.Tensor`."""
    return _is_loaded_instance(value, "torch", "Tensor")


def is_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether `value` is a `numpy.ndarray`."""
    return _is_loaded_instance(value, "numpy", "ndarray")


def is_image(value: object) -> TypeGuard[Image.Image]:
    """Whether `value` is a `PIL.Image.Image`."""
    return _is_loaded_instance(value, "PIL.Image", "Image")

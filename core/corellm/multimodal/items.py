"""The parsed media of one request, by modality.

Knows containers and the types that media have, without importing the libraries that define them. Knows neither how
media are read (`parsing`, `image`) nor how they are processed (`processor`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from corellm.errors import ItemNotCachedError, MultiModalError, PromptTooLongError


@contextmanager
def name_item_in_errors(modality: str, item: int) -> Iterator[None]:
    """Add modality and index of an item to the errors raised inside."""
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
    """An item as the bytes of a file, which identify it; decoded on first use, so cached items are never decoded."""

    def __init__(self, content: bytes, decode: Callable[[bytes], Any]) -> None:
        self.content, self._decode = content, decode
        self._lock = threading.Lock()  # per item: `cached_property` of Python 3.11 has one lock for all
        self._media: list[Any] = []

    @property
    def media(self) -> Any:
        """The decoded media.

        Raises:
            MediaError: the file is broken.
        """
        with self._lock:
            if not self._media:
                self._media.append(self._decode(self.content))
            return self._media[0]


class UuidItem:
    """An item given as its uuid, without media: its tensors are cached from an earlier request, or it is refused."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    @property
    def media(self) -> NoReturn:
        """Raise: there are none.

        Raises:
            ItemNotCachedError: always.
        """
        raise ItemNotCachedError(
            f"only its uuid {self.uuid!r:.100} was given, and it is not cached for this cache_salt and these processor "
            "arguments; send it with its data"
        )


class GivenEmbeddings:
    """Precomputed embeddings of one item, under the modality's key, marked: their shape alone may not show it."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


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
            ItemNotCachedError: only its uuid was given (see `is_uuid_only`).
        """
        item = self._items[index]
        if not isinstance(item, (EncodedItem, UuidItem)):
            return item
        with name_item_in_errors(self.modality, index):
            return item.media

    def is_uuid_only(self, index: int) -> bool:
        """Whether item `index` was given as its uuid alone, without media to `get`."""
        return isinstance(self._items[index], UuidItem)

    def content(self, index: int) -> Any:
        """What identifies item `index`: the bytes of its file, else what `get` returns."""
        item = self._items[index]
        return item.content if isinstance(item, EncodedItem) else item

    def num_embeddings(self, index: int) -> int | None:
        """Number of embeddings given for item `index`; None if an encoder makes them."""
        raise NotImplementedError


class MediaItems(ModalityItems):
    """Media that were read. Files of images and audio are decoded on first use.

    An image is a `PIL.Image.Image` in mode RGB, upright, without metadata; a video a `Video`, whose frames are decoded
    on demand; audio an array `[num_samples]`, float32, at the model's sampling rate.
    """

    def num_embeddings(self, index: int) -> None:
        """Return None: the encoder makes them."""
        return


class EmbeddingItems(ModalityItems):
    """Precomputed embeddings, one floating-point tensor `[tokens, hidden]` per item; they skip the encoder."""

    def num_embeddings(self, index: int) -> int:
        """Number of tokens of item `index`."""
        return int(self._items[index].shape[0])


class MultiModalItems(dict[str, ModalityItems]):
    """`{modality: its items}` of one request. A modality given as an empty list is a key, with no items."""

    def get_counts(self) -> dict[str, int]:
        """`{modality: number of items}`."""
        return {modality: len(items) for modality, items in self.items()}

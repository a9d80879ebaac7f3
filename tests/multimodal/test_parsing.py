"""What `multi_modal_data` may hold: told apart, counted without being opened, and refused by modality and item."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import corellm.errors
from corellm.config import MultiModalConfig
from corellm.errors import (
    EmbeddingInputError,
    MediaError,
    MediaTooLargeError,
    MultiModalError,
    UnsupportedModalityError,
)
from corellm.multimodal import DataParser, ModalityParser, RawItems
from corellm.multimodal.items import EmbeddingItems, EncodedItem, MediaItems

HIDDEN = 16
LIMITS = MultiModalConfig(max_image_pixels=1000)
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8))
ARRAY = np.asarray(IMAGE)
BUFFER = BytesIO()
IMAGE.save(BUFFER, "PNG")
PNG = BUFFER.getvalue()
BASE64 = base64.b64encode(PNG).decode()


@pytest.fixture
def parser() -> DataParser:
    """A parser for small images and narrow embeddings."""
    return DataParser(LIMITS, hidden_size=HIDDEN)


def embeddings(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random embeddings."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


# --- images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (IMAGE, 1),
        ([IMAGE, IMAGE], 2),
        ((IMAGE,), 1),
        (ARRAY, 1),
        (np.moveaxis(ARRAY, -1, 0), 1),
        (np.stack([ARRAY] * 3), 3),
        (ARRAY.astype(np.float32) / 255, 1),
        (torch.from_numpy(ARRAY.copy()), 1),
        (torch.from_numpy(ARRAY.copy()).permute(2, 0, 1) / 255, 1),
        (torch.from_numpy(ARRAY.copy()) / 255, 1),
        (torch.from_numpy(np.stack([ARRAY] * 2)), 2),
        ([torch.from_numpy(ARRAY.copy()), ARRAY, IMAGE, PNG], 4),
        (PNG, 1),
        (bytearray(PNG), 1),
        (f"data:image/png;base64,{BASE64}", 1),
        (f"DATA:image/png;BASE64,{BASE64}", 1),
        ("data:image/png;base64," + base64.encodebytes(PNG).decode(), 1),
        ("data:;base64," + BASE64.replace("+", "%2B").replace("=", "%3D"), 1),
        ("data:image/png," + "".join(f"%{byte:02x}" for byte in PNG), 1),
        ([], 0),
        (None, None),
        (np.zeros((0, 6, 9, 3), np.uint8), 0),
    ],
)
def test_images_in_any_form(parser: DataParser, value: Any, count: int | None) -> None:
    """Counted alike before and after parsing, and the same pixels come out of every form."""
    wanted = {} if count is None else {"image": count}
    assert parser.count({"image": value}) == wanted
    items = parser.parse({"image": value})
    assert items.get_counts() == wanted
    for images in items.values():
        assert isinstance(images, MediaItems)
        assert (images.modality, len(images)) == ("image", images.count)
        for i in range(len(images)):
            assert images.get(i).mode == "RGB"
            assert images.get(i).tobytes() == IMAGE.tobytes()
            assert images.num_embeddings(i) is None


def test_paths(parser: DataParser, tmp_path: Path) -> None:
    """As a string and as a path object."""
    path = tmp_path / "an image.png"
    path.write_bytes(PNG)
    items = parser.parse({"image": [str(path), path]})["image"]
    assert [items.get(i).tobytes() for i in (0, 1)] == [IMAGE.tobytes()] * 2


def test_grey_tensors_of_integers_are_images(parser: DataParser) -> None:
    """Embeddings are floats, so there is no doubt: not alone, not in a list, not by their shape."""
    grey = torch.arange(54, dtype=torch.uint8).reshape(6, 9)
    for value in (grey, [grey], grey[None], grey.to(torch.uint16) * 257):
        items = parser.parse({"image": value})["image"]
        assert isinstance(items, MediaItems)
        assert items.get(0).getpixel((2, 1)) == (11, 11, 11)


def test_any_mapping_will_do_and_nothing_in_it_is_changed(parser: DataParser) -> None:
    """A list given is not the list kept."""
    images = [IMAGE]
    items = parser.parse(UserDict({"image": images}))
    images.append(IMAGE)
    assert items.get_counts() == {"image": 1}
    assert items["image"].get(0) is not IMAGE
    assert parser.parse({}) == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x.png", r"image 1: no such file: 'x\.png'"),
        (".", r"image 1: '\.' is a directory"),
        (b"hello", "image 1: .* not a JPEG"),
        (b"", "image 1: the data is empty"),
        (PNG[:-30], "image 1: the data: broken or truncated PNG"),
        ("https://example.com/a.png", "image 1: .*allowed_media_domains"),
        ("HTTP://example.com/a.png", "image 1: .*allowed_media_domains"),
        ("data:image/png;base64,@@@@", "image 1: malformed data: URL: .* not base64"),
        ("data:image/png;base64,AAAAA", "image 1: malformed data: URL: .* not base64"),
        ("data:image/png;base64,é", "image 1: malformed data: URL: .* not base64"),
        ("data:image/png", "image 1: malformed data: URL: no comma"),
        ("data:,", "image 1: the data is empty"),
        ("data:text/plain,hello", "image 1: .* not a JPEG"),
        (None, "image 1: None"),
        (5, "image 1: int"),
        ({"type": "image_url"}, "image 1: dict"),
        ([IMAGE], "image 1: list"),
        (np.full((6, 9), 2.0), "image 1: .* float64 .* 0 to 1"),
        (embeddings(1, 5, HIDDEN), "image 1: .* 0 to 1.*'image_embeds'"),
        (embeddings(2, 5, HIDDEN), r"image 1: shape \(2, 5, 16\).*'image_embeds'"),
        (np.zeros((2, 6, 9, 3), np.uint8), r"image 1: shape \(2, 6, 9, 3\)"),
    ],
)
def test_a_bad_image_is_named(parser: DataParser, value: Any, words: str) -> None:
    """In text and in attributes; counting alone finds nothing wrong, for it opens nothing."""
    data = {"image": [IMAGE, value, IMAGE]}
    assert parser.count(data) == {"image": 3}
    with pytest.raises(MediaError, match=words) as caught:
        parser.parse(data)["image"].get(1)
    assert (caught.value.modality, caught.value.item) == ("image", 1)
    assert len(str(caught.value)) < 500


def test_files_are_known_by_their_bytes(parser: DataParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, path and URL of one file are one item, which is decoded when it is asked for, once."""
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    decoded: list[Any] = []
    load = DataParser.load_image
    monkeypatch.setattr(DataParser, "load_image", lambda self, value: decoded.append(value) or load(self, value))
    items = parser.parse({"image": [PNG, path, f"data:image/png;base64,{BASE64}", IMAGE]})["image"]
    assert [items.content(i) for i in range(3)] == [PNG] * 3
    assert decoded == [IMAGE]
    assert items.content(3) is items.get(3)
    assert items.get(0) is items.get(0)
    assert decoded == [IMAGE, PNG]


def test_a_broken_file_is_named_when_it_is_asked_for(parser: DataParser, tmp_path: Path) -> None:
    """With its path."""
    path = tmp_path / "a.png"
    path.write_bytes(PNG[:-30])
    items = parser.parse({"image": path})["image"]
    with pytest.raises(MediaError, match=r"^image 0: '.*a\.png': broken"):
        items.get(0)


def test_too_many_pixels_are_named_with_both_numbers(parser: DataParser) -> None:
    """The type of the error says that nothing was decoded."""
    with pytest.raises(MediaTooLargeError, match=r"1600 pixels, .* 1000 .*max_image_pixels") as caught:
        parser.parse({"image": Image.new("1", (40, 40))})
    assert (caught.value.modality, caught.value.item) == ("image", 0)
    assert (caught.value.expected, caught.value.got) == (1000, 1600)


def test_counting_opens_nothing(parser: DataParser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files nor data: limits come before any work."""
    monkeypatch.setattr(DataParser, "load_image", lambda *_: pytest.fail("opened an item"))
    huge = Image.new("1", (40, 40))
    assert parser.count({"image": ["/dev/stdin", b"", "data:;base64,", huge, None]}) == {"image": 5}
    assert parser.count({"image_embeds": [None, torch.full((1, 1), torch.nan)]}) == {"image": 2}


# --- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["image", "image_embeds"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_precomputed_embeddings(parser: DataParser, key: str, dtype: torch.dtype) -> None:
    """A tensor of rank 3 is its items; a list may have items of different lengths; values and dtype stay."""
    stacked = embeddings(2, 5, HIDDEN, dtype=dtype)
    listed = [embeddings(5, HIDDEN, dtype=dtype), embeddings(1, HIDDEN, dtype=dtype).requires_grad_()]
    for value in (stacked, listed, tuple(listed)):
        assert parser.count({key: value}) == {"image": 2}
        items = parser.parse({key: value})["image"]
        assert isinstance(items, EmbeddingItems)
        assert items.modality == "image"
        assert [items.num_embeddings(i) for i in range(2)] == [len(value[0]), len(value[1])]
        for i in range(2):
            assert torch.equal(items.get(i), value[i])
            assert items.get(i).dtype == dtype
            assert not items.get(i).requires_grad


@pytest.mark.parametrize("shape", [(1, 5, HIDDEN), (3, 5, HIDDEN), (4, 1, HIDDEN), (0, 5, HIDDEN)])
def test_under_their_own_key_embeddings_may_look_like_a_image(parser: DataParser, shape: tuple[int, ...]) -> None:
    """One, three or four items are no channels there."""
    items = parser.parse({"image_embeds": embeddings(*shape)})["image"]
    assert isinstance(items, EmbeddingItems)
    assert len(items) == shape[0]


@pytest.mark.parametrize(
    "value",
    [embeddings(5, HIDDEN), torch.zeros(5, HIDDEN), [IMAGE, torch.zeros(5, HIDDEN)], [torch.zeros(5, HIDDEN), PNG]],
)
def test_doubt_is_an_error(parser: DataParser, value: Any) -> None:
    """A flat float tensor alone, or among images, may be either; the message says how to say which."""
    with pytest.raises(EmbeddingInputError, match=r"image \d: .*'image_embeds'"):
        parser.count({"image": value})


@pytest.mark.parametrize(
    ("value", "words", "expected", "got"),
    [
        (embeddings(5, HIDDEN + 1), "hidden size 16, got 17", HIDDEN, HIDDEN + 1),
        (embeddings(0, HIDDEN), "at least 1, got 0", None, 0),
        (embeddings(2, 5, HIDDEN), r"rank 2, \[tokens, hidden\], got shape \(2, 5, 16\)", None, None),
        (embeddings(HIDDEN), r"rank 2, \[tokens, hidden\], got shape \(16,\)", None, None),
        (embeddings(5, HIDDEN).long(), "dtype torch.float32 or .*, got torch.int64", None, "torch.int64"),
        (embeddings(5, HIDDEN).to(torch.complex64), "got torch.complex64", None, None),
        (embeddings(5, HIDDEN).to(torch.float8_e4m3fn), "got torch.float8_e4m3fn", None, None),
        (embeddings(5, HIDDEN).index_fill(1, torch.tensor([3]), torch.nan), "finite values, got NaN", None, None),
        (embeddings(5, HIDDEN).index_fill(1, torch.tensor([3]), torch.inf), "finite values", None, None),
        (embeddings(5, HIDDEN).to_sparse(), "dense tensor", None, None),
        (embeddings(5, HIDDEN).to("meta"), "dense tensor", None, None),
        (embeddings(5, HIDDEN).numpy(), r"a torch\.Tensor, got ndarray", None, "ndarray"),
        (None, r"a torch\.Tensor, got NoneType", None, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_embeddings_are_named(parser: DataParser, value: Any, words: str, expected: Any, got: Any) -> None:
    """Each with modality, item, expected and got."""
    with pytest.raises(EmbeddingInputError, match=f"image 1: embeddings: .*{words}") as caught:
        parser.parse({"image_embeds": [embeddings(5, HIDDEN), value]})
    error = caught.value
    assert (error.modality, error.item) == ("image", 1)
    assert expected is None or error.expected == expected
    assert got is None or error.got == got
    assert error.expected is not None
    assert error.got is not None


@pytest.mark.parametrize(
    "value",
    [embeddings(5, HIDDEN), embeddings(1, 2, 5, HIDDEN), embeddings(2, 5, HIDDEN).numpy(), IMAGE, 5, b"", "a.pt"],
)
def test_what_is_no_collection_of_embeddings(parser: DataParser, value: Any) -> None:
    """A single flat tensor would be split into single embeddings; paths are not unpickled."""
    with pytest.raises(EmbeddingInputError, match=r"image_embeds: .*\[items, tokens, hidden\]"):
        parser.parse({"image_embeds": value})


@pytest.mark.parametrize("value", [embeddings(2, 5, HIDDEN).to_sparse(), embeddings(2, 5, HIDDEN).to("meta")])
def test_embeddings_without_dense_values(parser: DataParser, value: torch.Tensor) -> None:
    """Refused before they are taken apart."""
    with pytest.raises(EmbeddingInputError, match="dense tensor"):
        parser.parse({"image_embeds": value})


def test_any_width_where_the_model_does_not_say(parser: DataParser) -> None:
    """Except none at all."""
    lenient = DataParser(LIMITS, hidden_size=None)
    assert lenient.parse({"image_embeds": embeddings(2, 5, 7)}).get_counts() == {"image": 2}
    with pytest.raises(EmbeddingInputError, match=r"hidden size: .* got 0"):
        lenient.parse({"image_embeds": [embeddings(5, 0)]})


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["depth", "images", "image_embeds_embeds", "depth_embeds", "_embeds", 5])
@pytest.mark.parametrize("value", [None, [], IMAGE])
def test_unknown_modalities(parser: DataParser, key: Any, value: Any) -> None:
    """With the accepted names, whatever is under the key."""
    for method in (parser.count, parser.parse):
        with pytest.raises(UnsupportedModalityError, match="accepted: image, image_embeds") as caught:
            method({key: value})
        assert caught.value.modality == str(key)


def test_images_and_embeddings_together(parser: DataParser) -> None:
    """Their order in the prompt would be a guess; None is no item and disturbs nothing."""
    with pytest.raises(MultiModalError, match="'image' or 'image_embeds'"):
        parser.count({"image": IMAGE, "image_embeds": embeddings(2, 5, HIDDEN)})
    assert parser.count({"image": IMAGE, "image_embeds": None}) == {"image": 1}


@pytest.mark.parametrize("data", [None, [IMAGE], IMAGE, "image"])
def test_what_is_no_mapping(parser: DataParser, data: Any) -> None:
    """Says what it should look like."""
    with pytest.raises(MultiModalError, match=r'\{"image": image\}'):
        parser.parse(data)


def test_a_plugin_can_add_a_modality() -> None:
    """With its own splitting and reading; embeddings, counting and naming of items come along."""

    class WithDepth(DataParser):
        def modality_parsers(self) -> dict[str, ModalityParser]:
            return super().modality_parsers() | {"depth": ModalityParser(split=self.split_depth, load=self.load_depth)}

        def split_depth(self, value: Any) -> RawItems:
            return RawItems(value if isinstance(value, list) else [value])

        def load_depth(self, value: Any) -> Any:
            if not len(value):
                raise MediaError("no values")
            return np.asarray(value, np.float32)

    parser = WithDepth(LIMITS, hidden_size=HIDDEN)
    data = {"depth": [[0.0, 1.0], []], "image": IMAGE}
    assert parser.count(data) == {"depth": 2, "image": 1}
    with pytest.raises(MediaError, match="depth 1") as caught:
        parser.parse(data)
    assert (caught.value.modality, caught.value.item) == ("depth", 1)
    assert parser.parse({"depth": [[0.5]]}).get_counts() == {"depth": 1}
    assert parser.parse({"depth_embeds": embeddings(3, 5, HIDDEN)}).get_counts() == {"depth": 3}
    with pytest.raises(UnsupportedModalityError, match=r"accepted: image, image_embeds, .*, depth, depth_embeds"):
        parser.count({"smell": []})


def test_importing_the_parser_loads_no_heavy_library() -> None:
    """Nor does counting."""
    code = (
        "import sys; from corellm.multimodal.parsing import DataParser\n"
        "assert DataParser().count({'image': ['a', b'b']}) == {'image': 2}\n"
        "assert not {'torch', 'numpy', 'PIL'} & set(sys.modules), 'heavy'\n"
    )
    core = str(Path(corellm.errors.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": core}, check=True)


def test_a_plugins_own_reading_sees_what_was_given(tmp_path: Path) -> None:
    """Where a subclass reads images itself, it gets paths and strings as they are, for it may know more of them."""

    class Own(DataParser):
        def load_image(self, value: Any) -> Image.Image:
            return IMAGE if value in ("s3://bucket/a.png", tmp_path) else super().load_image(value)

    items = Own().parse({"image": ["s3://bucket/a.png", tmp_path, PNG]})["image"]
    assert [items.get(i).tobytes() for i in range(3)] == [IMAGE.tobytes()] * 3


def test_files_too_large_are_not_read(parser: DataParser, tmp_path: Path) -> None:
    """A sparse file of 6 GiB is refused by its size."""
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(MediaTooLargeError, match=r"image 0: .* 6442450944 bytes, .* 1073741824"):
        parser.parse({"image": path})


def test_items_are_decoded_side_by_side() -> None:
    """One item that takes long to decode does not keep another one waiting."""
    barrier = threading.Barrier(2, timeout=600)
    items = [EncodedItem(b"", lambda content: barrier.wait() >= 0) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda item: item.media, items)) == [True, True]

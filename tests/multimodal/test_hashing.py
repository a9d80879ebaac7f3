"""Item hashes: equal exactly where modality, content, type, arguments and namespace are equal, in every process."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import corellm.errors
from corellm.errors import InvalidParameterError, MediaError, ProcessorKwargsError
from corellm.multimodal import hashing
from corellm.multimodal.hashing import hash_item, hash_uuid


class Resampling(Enum):
    """Stands for the enums that processors take."""

    NEAREST = 0
    BICUBIC = 3


def content(
    media: Any,
    *,
    modality: str = "image",
    kwargs: dict[Any, Any] | None = None,
    namespace: tuple[str, ...] = ("m", "a"),
    salt: str | None = None,
) -> str:
    """`hash_item` with most arguments filled in."""
    return hash_item(media, modality=modality, kwargs=kwargs or {}, namespace=namespace, salt=salt)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """Deep equality that tells types apart and does not look at the order of dicts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        keys = {(type(key), key) for key in a}
        return keys == {(type(key), key) for key in b} and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return bool(a == b)


@given(a=VALUES, b=VALUES)
@settings(max_examples=300, deadline=None)
def test_values_hash_alike_exactly_when_they_are_the_same(a: Any, b: Any) -> None:
    """As media and as an argument, against a comparison written independently."""
    assert (content(a) == content(b)) == same(a, b)
    assert (content(1, kwargs={"k": a}) == content(1, kwargs={"k": b})) == same(a, b)


@given(pairs=st.lists(st.tuples(st.text(max_size=4), SCALARS), max_size=5, unique_by=lambda pair: pair[0]))
def test_the_order_of_arguments_does_not_count(pairs: list[tuple[str, Any]]) -> None:
    """Neither at the top nor deeper."""
    forwards, backwards = dict(pairs), dict(reversed(pairs))
    assert content(0, kwargs=forwards) == content(0, kwargs=backwards)
    assert content({"deep": forwards}) == content({"deep": backwards})


NEIGHBOURS: list[Any] = [
    0, False, 0.0, -0.0, "0", b"0", None, "", b"", [], (), {}, 1, True, 1.0, "1", 256, -1, 2**70, [0], [[0]], [0, 0],
    [[0], 0], ["ab", "c"], ["a", "bc"], ["abc"], [b"abc"], "abc", b"abc", ["as", "b"], ["a", "sb"], {"a": 1}, {"a":
    True}, {"a": 1, "b": None}, ["a", 1], {1: "a"}, {"1": "a"}, math.inf, -math.inf, math.nan, Resampling.NEAREST,
    Resampling.BICUBIC, np.float32(0), np.float64(0), np.int64(0), np.bool_(False), np.array([0]), np.array([[0]]),
    np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.uint8), np.zeros(6, np.uint8), np.zeros(6, np.int8), np.zeros(6,
    "<u2"), np.zeros(6, ">u2"), np.zeros((0, 3), np.uint8), np.zeros((3, 0), np.uint8), np.array(["ab", "c"]),
    torch.tensor(0), torch.zeros(6, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(6,
    dtype=torch.int8), torch.zeros(6, dtype=torch.bool), torch.zeros(6, dtype=torch.float16), torch.zeros(6,
    dtype=torch.bfloat16), torch.zeros(0, 3), torch.zeros(3, 0), torch.zeros(3, dtype=torch.complex64), bytes(6),
    Image.new("L", (2, 3)), Image.new("L", (3, 2)), Image.new("L", (6, 1)), Image.new("RGB", (2, 1)), Image.new("P",
    (2, 3)), Image.new("1", (2, 3)), Image.new("I;16", (3, 1)), Image.new("RGBA", (2, 3)), Image.new("CMYK", (2, 3)),
]  # fmt: skip


def test_neighbours_all_differ() -> None:
    """Mode, size, shape, dtype, byte order, type and nesting each change the hash; so does where one field ends.

    `["as", "b"]` and `["a", "sb"]` would be one string of tags and contents if no lengths stood between.
    """
    hashes = [content(value) for value in NEIGHBOURS]
    assert len(set(hashes)) == len(hashes), [
        (NEIGHBOURS[i], NEIGHBOURS[hashes.index(h)]) for i, h in enumerate(hashes) if hashes.index(h) != i
    ]
    assert hashes == [content(value) for value in NEIGHBOURS]


def test_palette_and_transparency_are_content() -> None:
    """The same indices mean other colours under another palette."""
    first = Image.new("P", (2, 2))
    first.putpalette([255, 0, 0])
    second = first.copy()
    second.putpalette([0, 255, 0])
    third = first.copy()
    third.info["transparency"] = 0
    turned = first.copy()
    turned.info["exif"] = b"Exif\0\0..."
    assert len({content(image) for image in (first, second, third, turned)}) == 4
    assert content(first) == content(first.copy())


def test_a_parsers_own_data_are_content() -> None:
    """An instruction beside equal pixels, in `info` or as an attribute, makes another item; that it was saved not."""

    def instructed(place: Callable[[Image.Image], dict[str, Any]], text: Any) -> Image.Image:
        image = Image.new("RGB", (2, 2))
        place(image)["instruction"] = text
        return image

    plain = Image.new("RGB", (2, 2))
    images = [instructed(place, text) for place in (lambda one: one.info, vars) for text in ("left", "right")]
    hashes = [content(image) for image in (plain, *images)]
    assert len(set(hashes)) == 5
    plain.save(BytesIO(), "PNG")
    assert hashes == [content(image) for image in (plain, *images)]
    with pytest.raises(MediaError):
        content(instructed(lambda one: one.info, Opaque()))
    with pytest.raises(MediaError):
        content(instructed(vars, Opaque()))


def test_what_files_say_of_images_is_content() -> None:
    """Every value that Pillow reads from files has a hash: text of PNG files, fractions of TIFF files."""

    def opened(kind: str, **options: Any) -> str:
        file = BytesIO()
        Image.new("RGB", (2, 2)).save(file, kind, **options)
        with Image.open(file) as image:
            return content(image)

    texts = []
    for words in ("left", "right"):
        text = PngInfo()
        text.add_itxt("instruction", words)
        texts.append(opened("PNG", pnginfo=text))
    hashes = [*texts, opened("TIFF", dpi=(72, 72.5)), opened("TIFF", dpi=(72, 73)), opened("JPEG", dpi=(72, 72))]
    assert len(set(hashes)) == len(hashes)
    assert content(Fraction(1, 3)) not in (content(Fraction(2, 3)), content(1 / 3), content((1, 3)))


@given(shape=st.lists(st.integers(0, 3), max_size=3), seed=st.integers(0, 9))
def test_arrays_hash_by_value_not_by_memory(shape: list[int], seed: int) -> None:
    """Strides, copies and devices of origin do not count; one changed element does."""
    array = np.random.default_rng(seed).integers(0, 9, shape)
    tensor = torch.from_numpy(np.array(array)).to(torch.bfloat16)
    assert content(array) == content(np.array(array, order="F")) == content(np.repeat(array[None], 2, axis=0)[1])
    assert content(tensor) == content(tensor.clone().requires_grad_())
    assert content(tensor) == content(torch.stack([tensor, tensor], dim=-1)[..., 0])
    if array.size:
        other = array.copy()
        other.flat[seed % array.size] += 1
        assert content(other) != content(array)
        assert content(torch.from_numpy(other).to(torch.bfloat16)) != content(tensor)


def test_lazy_conjugates_hash_by_value() -> None:
    """A conjugate that torch has not worked out yet is not its original."""
    tensor = torch.tensor([1 + 2j])
    assert content(tensor.conj()) == content(torch.tensor([1 - 2j]))


def test_odd_strides_hash_by_value() -> None:
    """Strides that torch calls contiguous, though no other dtype can be laid over them."""
    expanded = torch.zeros(1, dtype=torch.bfloat16).as_strided((1,), (0,))
    assert content(expanded) == content(torch.zeros(1, dtype=torch.bfloat16))
    empty = torch.zeros(0, dtype=torch.bfloat16)
    assert content(empty.as_strided((0,), (0,))) == content(empty)


def test_modality_and_namespace_count() -> None:
    """Another modality, model or adapter, or the same names cut elsewhere."""
    assert len({
        content(1), content(1, modality="video"), content(1, namespace=("m", "b")), content(1, namespace=("ma",)),
        content(1, namespace=("", "ma")), content(1, namespace=()),
    }) == 6  # fmt: skip


def image_of(mode: str, size: tuple[int, int], value: int) -> Image.Image:
    """A plain image; every mode's pixels are made of the same bytes."""
    bits = {"1": 1, "L": 8, "P": 8, "RGB": 24, "RGBA": 32, "CMYK": 32, "I;16": 16}[mode]
    return Image.frombytes(mode, size, bytes([value]) * (-(-size[0] * bits // 8) * size[1]))


REQUESTS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["1", "L", "P", "RGB", "RGBA", "CMYK", "I;16"]),
        "size": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "value": st.sampled_from([0, 255]),
        "uuid": st.none() | st.sampled_from(["a", "b"]),
        "salt": st.none() | st.sampled_from(["a", "b", "ab"]),
        "modality": st.sampled_from(["image", "video"]),
        "kwargs": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([0, False, "a", None]), max_size=2),
        "namespace": st.sampled_from([("m", "a"), ("m", "b"), ("m", "a", "b"), ("m",)]),
    }
)


@given(a=REQUESTS, b=REQUESTS, together=st.sets(st.sampled_from(["media", "uuid", "salt", "modality", "kwargs"])))
@settings(max_examples=300, deadline=None)
def test_requests_share_an_entry_exactly_when_all_is_equal(
    a: dict[str, Any], b: dict[str, Any], together: set[str]
) -> None:
    """Size, mode, pixels (or the name), tenant, arguments, modality, model; `together` makes near misses likely."""
    b = b | {name: a[name] for name in together - {"media"}}
    if "media" in together:
        b = b | {name: a[name] for name in ("mode", "size", "value", "namespace")}

    def entry(request: dict[str, Any]) -> str:
        keys = {name: request[name] for name in ("modality", "kwargs", "namespace", "salt")}
        if request["uuid"] is not None:
            return hash_uuid(request["uuid"], **keys)
        return hash_item(image_of(request["mode"], request["size"], request["value"]), **keys)

    def what_counts(request: dict[str, Any]) -> dict[str, Any]:
        ignored = {"mode", "size", "value"} if request["uuid"] is not None else set()
        return {name: value for name, value in request.items() if name not in ignored}

    assert (entry(a) == entry(b)) == same(what_counts(a), what_counts(b))


@given(text=st.text(min_size=1), kwargs=st.dictionaries(st.text(), SCALARS, max_size=2))
def test_a_uuid_is_never_a_content_hash(text: str, kwargs: dict[str, Any]) -> None:
    """Not even where the content is that very string, or the uuid a content hash; and it obeys arguments, too."""
    keys: dict[str, Any] = {"modality": "image", "kwargs": kwargs, "namespace": ("m", "a")}
    by_name, by_content = hash_uuid(text, **keys), hash_item(text, **keys)
    assert by_name != by_content
    assert hash_uuid(by_content, **keys) != by_content
    assert by_name == hash_uuid(text, **keys)
    assert by_name != hash_uuid(text, **keys | {"modality": "audio"})
    assert by_name != hash_uuid(text, **keys, salt=text)
    assert by_name != hash_uuid(text, **keys | {"namespace": ("m", "b")})
    assert by_name != hash_uuid(text, **keys | {"kwargs": {**kwargs, "one more": 1}})


@pytest.mark.parametrize("uuid", ["", None, 5, b"x"])
def test_uuids_are_strings(uuid: Any) -> None:
    """And not empty."""
    with pytest.raises(InvalidParameterError) as caught:
        hash_uuid(uuid, modality="image", kwargs={}, namespace=())
    assert caught.value.param == "multi_modal_uuids"


class Opaque:
    """A value with an identity and no content."""


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "value",
    [
        Opaque(), Opaque, len, {1, 2}, Path("x"), np.array([Opaque()]), np.zeros(2, [("a", "<i4")]), nested(100),
        range(3), torch.zeros(2, device="meta"), torch.eye(2).to_sparse(), [Opaque()], {"k": Opaque()}, {Opaque(): 1},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_unknown_kinds_are_refused(value: Any) -> None:
    """Typed, by place, and without an address in the text; never by repr, id or pickle."""
    with pytest.raises(MediaError, match="hashed") as caught:
        content(value)
    assert "0x" not in str(caught.value)
    with pytest.raises(ProcessorKwargsError, match="mm_processor_kwargs"):
        content(1, kwargs={"k": value})
    with pytest.raises(ProcessorKwargsError):
        hash_uuid("u", modality="image", kwargs={"k": value}, namespace=())


def test_a_image_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """One opened lazily from a file that ends too soon."""
    path = tmp_path / "cut.bmp"
    Image.new("RGB", (50, 50)).save(path)
    path.write_bytes(path.read_bytes()[:500])
    with Image.open(path) as image, pytest.raises(MediaError, match="cannot be read"):
        content(image)


IN_ANOTHER_PROCESS = """
import sys
from corellm.multimodal.hashing import hash_item, hash_uuid
light = not {"torch", "numpy", "PIL"} & set(sys.modules)
kwargs = {"size": {"w": 1, "h": 2.5}, "do": True, "names": ["x", ("y", None)]}
keys = {"modality": "image", "kwargs": kwargs, "namespace": ("model", "adapter 1")}
print(light, hash_item({"a": b"1", "b": 2}, **keys), hash_uuid("u", **keys))
import numpy, torch
from PIL import Image
image = Image.frombytes("RGB", (5, 4), bytes(range(60)))
print(hash_item(image, **keys), hash_item(torch.arange(5).bfloat16(), **keys), hash_item(numpy.arange(5.0), **keys))
"""


def test_hashes_are_the_same_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the seed of Python's own hash; and the module loads no heavy library until a value of it comes."""
    exec(IN_ANOTHER_PROCESS, {})
    here = capsys.readouterr().out.split()
    core = str(Path(corellm.errors.__file__).parents[1])
    seed = "4242" if os.environ.get("PYTHONHASHSEED") != "4242" else "0"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": core}
    run = [sys.executable, "-W", "error", "-c", IN_ANOTHER_PROCESS]
    there = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert there[0] == "True"
    assert there[1:] == here[1:]
    assert len(set(there)) == 6


class CountedHash:
    """A sha256 that notes how much each update brings."""

    def __init__(self, inner: Any, updates: list[int]) -> None:
        self._inner, self._updates = inner, updates

    def update(self, data: Any) -> None:
        self._updates.append(len(data))
        self._inner.update(data)

    def copy(self) -> CountedHash:
        return CountedHash(self._inner.copy(), self._updates)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_image_is_hashed_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """1024 x 768: its pixels are one update; element by element they would be millions."""
    image = Image.frombytes("RGB", (1024, 768), np.random.default_rng(0).bytes(1024 * 768 * 3))
    updates: list[int] = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashing.hashlib, "sha256", lambda: CountedHash(sha256(), updates))
    hashing._prefix.cache_clear()
    try:
        for media in (image, np.asarray(image), torch.from_numpy(np.array(image))):
            updates.clear()
            content(media)
            assert max(updates) == 1024 * 768 * 3
            assert sum(updates) < 1024 * 768 * 3 + 1000
    finally:
        hashing._prefix.cache_clear()

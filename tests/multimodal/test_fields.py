"""Fields: tensors divide into items and join again without loss, and what the config does not fit is refused."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BatchFeature

from corellm.errors import ContractError
from corellm.multimodal.fields import (
    MultiModalFieldConfig,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    group_joinable,
    join_items,
    split_items,
)

batched, shared = MultiModalFieldConfig.batched, MultiModalFieldConfig.shared
flat, flat_from_sizes = MultiModalFieldConfig.flat, MultiModalFieldConfig.flat_from_sizes


def same(left, right):
    """Equality by torch and by the plain `==`, not by the code under test."""
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return left == right


def same_items(left, right):
    return len(left) == len(right) and all(
        a.modality == b.modality and a.keys() == b.keys() and all(same(a[k].data, b[k].data) for k in a)
        for a, b in zip(left, right, strict=True)
    )


def make_items(shapes, lengths, *, dim=0, value=7):
    """One item per shape and length, of a batched, a flat and a shared tensor with values all their own."""
    items = []
    for i, (shape, length) in enumerate(zip(shapes, lengths, strict=True)):
        flat_shape = (length, 3) if dim == 0 else (3, length)
        config = {
            "pixels": batched("image"),
            "patches": flat_from_sizes("image", [length], dim=dim),
            "scale": shared("image", 1),
        }
        tensors = {
            "pixels": torch.full((1, *shape), float(i)),
            "patches": torch.arange(3 * length).reshape(flat_shape) + 100 * i,
            "scale": torch.tensor([value]),
        }
        items += split_items(tensors, config)["image"]
    return items


def config_of(items, dim):
    return {
        "pixels": batched("image"),
        "patches": flat_from_sizes("image", [item["patches"].data.shape[dim] for item in items], dim=dim),
        "scale": shared("image", len(items)),
    }


@given(
    st.lists(st.tuples(st.sampled_from([(2,), (2, 2), (3, 1)]), st.integers(0, 4)), min_size=1, max_size=6),
    st.sampled_from([0, 1, -1]),
)
def test_split_undoes_join(drawn, dim):
    """Items of separate processor calls, equal and unequal shapes, empty slices, flat along either dimension."""
    items = make_items([shape for shape, _ in drawn], [length for _, length in drawn], dim=dim)
    joined = join_items(items)
    assert same_items(split_items(joined, config_of(items, dim))["image"], items)
    assert isinstance(joined["pixels"], list) == (len({shape for shape, _ in drawn}) > 1)
    assert joined["patches"].shape[dim] == sum(length for _, length in drawn)
    assert joined["scale"].tolist() == [7]


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=8))
def test_groups_are_joinable_and_complete(values):
    """Every item is in exactly one group; groups agree in their shared value, and no two groups have the same."""
    items = [item for value in values for item in make_items([(2,)], [1], value=value)]
    groups = group_joinable(items)
    assert sorted(i for group in groups for i in group) == list(range(len(items)))
    assert [{values[i] for i in group} for group in groups] == [{value} for value in dict.fromkeys(values)]
    for group in groups:
        assert group == sorted(group)
        assert len(join_items([items[i] for i in group])["pixels"]) == len(group)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (({"x": torch.ones(1, 2)}, {"x": batched("image")}), ({"x": torch.ones(1, 2)}, {"x": batched("video")})),
        (({"x": torch.ones(1, 2)}, {"x": batched("image")}), ({"y": torch.ones(1, 2)}, {"y": batched("image")})),
        (
            ({"x": torch.ones(1, 2)}, {"x": batched("image")}),
            ({"x": torch.ones(1, 2, dtype=torch.float64)}, {"x": batched("image")}),
        ),
        (
            ({"x": torch.ones(1, 2)}, {"x": flat_from_sizes("image", [1])}),
            ({"x": torch.ones(1, 3)}, {"x": flat_from_sizes("image", [1])}),
        ),
        (({"x": 1}, {"x": shared("image", 1)}), ({"x": True}, {"x": shared("image", 1)})),
    ],
    ids=["modality", "names", "dtype", "flat width", "shared"],
)
def test_what_cannot_be_joined_is_grouped_apart(left, right):
    """Joining would fail, promote a dtype or lose a value: two groups, and `join_items` refuses."""
    (one,), (other,) = [next(iter(split_items(*side).values())) for side in (left, right)]
    assert group_joinable([one, other, one]) == [[0, 2], [1]]
    with pytest.raises(ValueError, match="group_joinable"):
        join_items([one, other])


def test_join_of_nothing():
    """There is no batch of no items."""
    assert group_joinable([]) == []
    with pytest.raises(ValueError, match="no items"):
        join_items([])


def test_splitting_a_batch_feature():
    """Text tensors and None need no config, absent optional tensors no harm; modalities come apart."""
    inputs = BatchFeature(
        {
            "input_ids": torch.ones(1, 5),
            "attention_mask": torch.ones(1, 5),
            "text_replacement_offsets": [[]],
            "pixel_values": torch.arange(6).reshape(2, 3),
            "image_sizes": [(4, 5), (6, 7)],
            "audio": np.arange(4, dtype=np.float32).reshape(1, 4),
            "unused": torch.ones(3),
            "nothing": None,
            "named": "text",
        }
    )
    config = {
        "pixel_values": batched("image"),
        "image_sizes": batched("image"),
        "audio": batched("audio"),
        "video_grid": batched("video"),
        "unused": None,
    }
    split = split_items(inputs, config, ignored={"named"})
    assert list(split) == ["image", "audio"]
    first, second = split["image"]
    assert second["pixel_values"].data.tolist() == [3, 4, 5]
    assert first["image_sizes"].data.tolist() == [4, 5]
    assert split["audio"][0]["audio"].data.tolist() == [0, 1, 2, 3]
    assert (first.modality, first.nbytes) == ("image", 3 * 8 + 2 * 8)
    assert list(first.get_data()) == list(first) == ["pixel_values", "image_sizes"]
    assert join_items([first, second])["image_sizes"].tolist() == [[4, 5], [6, 7]]


def test_a_config_may_claim_a_text_tensor():
    """A family whose encoder needs `attention_mask` says so, and gets it."""
    (item,) = split_items({"attention_mask": torch.ones(1, 4)}, {"attention_mask": batched("audio")})["audio"]
    assert item["attention_mask"].data.shape == (4,)


@pytest.mark.parametrize("count", [1, 2])
def test_lists_of_what_has_no_tensor_stay_lists(count):
    """Nested lists of tensors (frames of a video) and plain values (names) divide and join as they are."""
    inputs = {
        "frames": [[torch.ones(2), torch.ones(3)]] * count,
        "names": ["a", "b"][:count],
        "fps": [2.0, 1.0][:count],
    }
    items = split_items(inputs, dict.fromkeys(inputs, batched("video")))["video"]
    joined = join_items(items)
    assert same(joined["frames"], inputs["frames"])
    assert joined["names"] == inputs["names"]
    assert joined["fps"].tolist() == inputs["fps"]


@pytest.mark.parametrize(
    ("inputs", "config", "words"),
    [
        ({"x": torch.ones(2, 3)}, {}, ["'x'", "(2, 3)", "MultiModalFieldConfig.batched"]),
        ({"x": torch.tensor(1)}, {"x": batched("image")}, ["'x'", "no item dimension"]),
        ({"x": "text"}, {"x": batched("image")}, ["'x'", "no item dimension"]),
        ({"x": np.array(["a"])}, {"x": batched("image")}, ["'x'", "become a tensor"]),
        (
            {"x": torch.ones(2, 3), "y": torch.ones(3)},
            {"x": batched("image"), "y": batched("image")},
            ["'x' has 2", "'y' has 3"],
        ),
        (
            {"x": torch.ones(2), "y": 1},
            {"x": batched("image"), "y": shared("image", 3)},
            ["'x' has 2", "'y' has 3"],
        ),
        ({"x": torch.ones(4)}, {"x": flat("image", [slice(0, 2), slice(1, 4)])}, ["item 1", "[1, 4)", "ends at 2"]),
        ({"x": torch.ones(4)}, {"x": flat("image", [slice(0, 2), slice(3, 4)])}, ["item 1", "[3, 4)", "gap"]),
        ({"x": torch.ones(4)}, {"x": flat("image", [slice(1, 4)])}, ["item 0", "[1, 4)"]),
        ({"x": torch.ones(4)}, {"x": flat("image", [slice(0, 3)])}, ["end at 3 of 4"]),
        ({"x": torch.ones(4)}, {"x": flat("image", [slice(0, 9)])}, ["[0, 9) of 4"]),
        ({"x": torch.ones(4)}, {"x": flat("image", [slice(0, -1)])}, ["[0, -1) of 4"]),
        ({"x": torch.ones(4)}, {"x": flat("image", [])}, ["end at 0 of 4"]),
        ({"x": torch.ones(4)}, {"x": flat_from_sizes("image", [4], dim=1)}, ["dimension 1", "(4,)"]),
        ({"x": [torch.ones(1)]}, {"x": flat_from_sizes("image", [1])}, ["dimension 0", "a list"]),
    ],
)
def test_contract_errors_of_split(inputs, config, words):
    """Each names the hook, the tensor and what is wrong with it."""
    with pytest.raises(ContractError) as caught:
        split_items(inputs, config)
    assert all(word in str(caught.value) for word in ["get_mm_fields_config", *words]), caught.value


@pytest.mark.parametrize(
    "make",
    [
        lambda: flat("image", [slice(0, 4, 2)]),
        lambda: flat("image", [3]),
        lambda: flat("image", [slice(0, 1.5)]),
        lambda: flat_from_sizes("image", [2, -1]),
        lambda: flat_from_sizes("image", [1.5]),
        lambda: flat_from_sizes("image", torch.ones(2, 2, dtype=torch.long)),
        lambda: flat_from_sizes("image", torch.tensor(3)),
    ],
)
def test_contract_errors_of_configs(make):
    """A layout that no tensor could have is refused where it is made."""
    with pytest.raises(ContractError, match="flat"):
        make()


@pytest.mark.parametrize("sizes", [[1, 0, 3], torch.tensor([1, 0, 3]), np.array([1, 0, 3])])
def test_sizes_and_open_slices(sizes):
    """Sizes may come as any array; a slice may leave its ends open; an item may be empty."""
    x = torch.arange(8).reshape(2, 4)
    by_size = split_items({"x": x}, {"x": flat_from_sizes("image", sizes, dim=1)})["image"]
    by_slice = split_items({"x": x}, {"x": flat("image", [slice(1), slice(1, 1), slice(1, None)], dim=1)})["image"]
    assert same_items(by_size, by_slice)
    assert [item["x"].data.tolist() for item in by_size] == [[[0], [4]], [[], []], [[1, 2, 3], [5, 6, 7]]]


def test_an_item_does_not_keep_the_batch_alive():
    """Each item's storage has exactly its own bytes, whatever layout and array it came from; one item costs no copy."""
    big = torch.zeros(100, 64)
    inputs = {
        "a": big[:50],
        "b": np.zeros((200, 4))[:50],
        "c": big[:50],
        "d": [row[:3] for row in big[:50]],
        "e": big[0, :1],
    }
    config = {
        "a": batched("image"),
        "b": batched("image"),
        "c": flat_from_sizes("image", [1] * 50),
        "d": batched("image"),
        "e": shared("image", 50),
    }
    for item in split_items(inputs, config)["image"]:
        for elem in item.values():
            assert elem.data.untyped_storage().nbytes() == elem.data.numel() * elem.data.element_size() == elem.nbytes
    single = torch.ones(1, 3)
    (item,) = split_items({"a": single}, {"a": batched("image")})["image"]
    assert item["a"].data.data_ptr() == single.data_ptr()


def test_read_only_arrays_are_copied_without_a_warning():
    """Arrays from a file map or of reversed strides become tensors of the same values."""
    array = np.arange(4)[::-1]
    array.flags.writeable = False
    (item,) = split_items({"x": array[None]}, {"x": batched("image")})["image"]
    assert item["x"].data.tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_items_and_configs_are_plain_data(clone):
    """Nothing in them refuses to cross a process boundary, and they compare equal by value afterwards."""
    (item,) = make_items([(2, 2)], [3])
    assert same_items([clone(item)], [item])
    assert clone(item) == item
    config = config_of([item], 0)
    assert clone(config) == config
    other = MultiModalKwargsItem({**item, "scale": MultiModalFieldElem(item["scale"].field, torch.tensor([8]))})
    assert other != item


def test_an_item_has_one_modality():
    """No tensors, or tensors of two modalities, are no item."""
    elems = {m: MultiModalFieldElem(batched(m).field, torch.ones(1)) for m in ("image", "video")}
    for wrong in ({}, elems):
        with pytest.raises(ValueError, match="modality"):
            MultiModalKwargsItem(wrong)


def test_importing_it_imports_no_torch():
    """The front end and the scheduler import these modules; torch has to wait until a tensor is touched."""
    code = (
        "import sys, corellm.multimodal.fields, corellm.multimodal.prompt_updates; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})

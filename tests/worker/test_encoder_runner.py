"""Encoder outputs have the width that the adapter declares, or its first item has; another is an error with both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from corellm.errors import ContractError, EmbeddingCountError, EncoderError, raised_at
from corellm.multimodal import MultiModalFeature, MultiModalFieldConfig, PlaceholderRange
from corellm.multimodal.fields import split_items
from corellm.worker.encoder_outputs import checked_outputs
from corellm.worker.encoder_runner import EncoderRunner


def feature(item: int, tokens: int) -> MultiModalFeature:
    """An item that takes `tokens` embeddings."""
    fields = {"pixels": MultiModalFieldConfig.batched("image")}
    data = split_items({"pixels": torch.full((1, tokens), float(item))}, fields)["image"][0]
    return MultiModalFeature("image", item, f"image-{item}", PlaceholderRange(0, tokens), data)


def runner(width: int | None, made: int) -> EncoderRunner:
    """A runner for embeddings of `width`, and an encoder that returns embeddings of `made`."""

    def embed(model: Any, modality: str, mm_kwargs: Any) -> list[torch.Tensor]:
        return [row[:, None].expand(-1, made) for row in mm_kwargs["pixels"]]

    hooks = SimpleNamespace(get_multimodal_embeddings=embed)
    return EncoderRunner(hooks, None, width, torch.float32, torch.device("cpu"))


def test_rows_wider_than_an_embedding() -> None:
    """Three times the hidden size, for items of different lengths."""
    encoders = runner(width=24, made=24)
    items = [feature(0, 3), feature(1, 5)]
    encoders.run(items)
    for i, item in enumerate(items):
        assert torch.equal(encoders.output(item), torch.full((item.placeholder.num_embeds, 24), float(i)))


def test_variants_run_apart() -> None:
    """An item of two variants is encoded twice, each with what surrounds its own; so are precomputed ones never."""
    variants: list[str] = []
    batches: list[tuple[str, int]] = []

    @contextmanager
    def around(variant: str) -> Iterator[None]:
        variants.append(variant)
        yield
        variants.pop()

    def embed(model: Any, modality: str, mm_kwargs: Any) -> list[torch.Tensor]:
        batches.append((variants[-1], len(mm_kwargs["pixels"])))
        return [row[:, None].expand(-1, 8) + len(variants[-1]) for row in mm_kwargs["pixels"]]

    hooks: Any = SimpleNamespace(get_multimodal_embeddings=embed)
    encoders = EncoderRunner(hooks, None, 8, torch.float32, torch.device("cpu"), around)
    items = [feature(0, 3), feature(0, 3).of_variant("a"), feature(1, 3), feature(0, 3).of_variant("bb")]
    encoders.run(items)
    assert batches == [("", 2), ("a", 1), ("bb", 1)]
    assert [int(encoders.output(item)[0, 0]) for item in items] == [0, 1, 1, 2]
    assert items[0].of_variant("") is items[0]
    given = replace(items[0], precomputed=True)
    assert given.of_variant("a") is given


@pytest.mark.parametrize(("width", "made"), [(8, 24), (24, 8)])
def test_another_width(width: int, made: int) -> None:
    """Found when the dummies are embedded, at load; the error names the hook that states the width."""
    with pytest.raises(EmbeddingCountError, match=rf"width {made}, not {width}: .*get_multimodal_embedding_width"):
        runner(width, made).check([feature(0, 3)])


def test_a_width_that_is_not_stated() -> None:
    """The first item, a dummy at load, shows it; later ones must have the same."""
    made = iter([torch.zeros(1, 3, 24), torch.zeros(1, 5, 24), torch.zeros(1, 2, 8)])
    hooks: Any = SimpleNamespace(get_multimodal_embeddings=lambda **_: next(made))
    encoders = EncoderRunner(hooks, None, None, torch.float32, torch.device("cpu"))
    encoders.check([feature(0, 3)])
    assert encoders.width == 24
    encoders.check([feature(1, 5)])
    with pytest.raises(EmbeddingCountError, match=r"width 8, not 24"):
        encoders.check([feature(2, 2)])


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, r"NoneType None .*\[items, tokens, width\]"),
        ((row for row in ()), "returned generator"),
        ([np.zeros((3, 8), np.float32)], "returned list"),
        ({"image": torch.zeros(1, 3, 8)}, "returned dict"),
    ],
    ids=["nothing", "generator", "arrays", "mapping"],
)
def test_results_of_a_wrong_type(result: Any, words: str) -> None:
    """The error names the type and what the hook must return."""
    hooks = SimpleNamespace(get_multimodal_embeddings=lambda **_: result)
    with pytest.raises(ContractError, match=words):
        EncoderRunner(hooks, None, 8, torch.float32, torch.device("cpu")).check([feature(0, 3)])


def test_all_rows_in_one_tensor() -> None:
    """Embeddings of several items that are not divided: the error has their shape and says how to divide them."""
    with pytest.raises(EmbeddingCountError, match=r"\[8, 8\]; .*torch\.split"):
        checked_outputs([feature(0, 4), feature(1, 4)], [torch.zeros(8, 8)], 8, torch.float32, torch.device("cpu"))


def test_where_an_error_came_from() -> None:
    """In a plugin if one is on the way, however deep in a library it was raised."""
    namespace: dict[str, Any] = {}
    exec(compile("def hook():\n    return [].pop()\n", "/somewhere/corellm_toy/__init__.py", "exec"), namespace)
    library = "import json\n\ndef load(call):\n    return call()\n"
    exec(compile(library, "/env/lib/python3.11/site-packages/heavy/load.py", "exec"), namespace)
    with pytest.raises(IndexError) as raised:
        namespace["load"](lambda: namespace["load"](namespace["hook"]))
    assert raised_at(raised.value) == "corellm_toy/__init__.py:2"


def test_kept_rows_hold_no_more_than_themselves() -> None:
    """Views of a batch's output are copied, so that an item that stays does not keep the whole batch's memory."""
    batch = torch.randn(4, 6, 8)
    hooks = SimpleNamespace(get_multimodal_embeddings=lambda **_: batch)
    encoders = EncoderRunner(hooks, None, 8, torch.float32, torch.device("cpu"))
    items = [feature(i, 6) for i in range(4)]
    encoders.run(items)
    for item, rows in zip(items, batch, strict=True):
        kept = encoders.output(item)
        assert torch.equal(kept, rows)
        assert kept.untyped_storage().nbytes() == 6 * 8 * 4


def test_a_failure_is_forgotten_with_all_outputs() -> None:
    """The reason of another run is not told of an item that has not been run since."""
    encoders = runner(width=8, made=8)
    item = feature(0, 3)
    item.data["pixels"].data.fill_(torch.nan)
    encoders.run([item])
    with pytest.raises(EncoderError, match="NaN"):
        encoders.output(item)
    encoders.drop_all()
    with pytest.raises(EncoderError, match="its encoder output was dropped"):
        encoders.output(item)


@pytest.mark.parametrize(
    "made", [[torch.ones(6, 8), torch.zeros(6, 8)], torch.ones(1, 6, 8)], ids=["a tensor each", "an item alone"]
)
def test_rows_with_memory_of_their_own_are_not_copied(made: Any) -> None:
    """The encoder's own memory is kept where a copy would free none."""
    hooks = SimpleNamespace(get_multimodal_embeddings=lambda **_: made)
    encoders = EncoderRunner(hooks, None, 8, torch.float32, torch.device("cpu"))
    items = [feature(i, 6) for i in range(len(made))]
    encoders.run(items)
    for item, rows in zip(items, made, strict=True):
        assert encoders.output(item).data_ptr() == rows.data_ptr()


@pytest.mark.parametrize(
    ("how", "lengths"),
    [
        (MultiModalFieldConfig.flat("image", [slice(0, None)]), (4, 4, 4)),
        (MultiModalFieldConfig.batched("image"), (4, 5, 6)),
    ],
    ids=["one behind the other", "a list"],
)
def test_an_item_that_spoils_its_batch_fails_alone(how: MultiModalFieldConfig, lengths: tuple[int, ...]) -> None:
    """Encoders that get several items in a row may mix them: 0 times NaN is NaN. The others run again, without it."""
    items = []
    for number, (length, value) in enumerate(zip(lengths, (1.0, torch.nan, 2.0), strict=True)):
        pixels = torch.full((length,) if how.field.kind == "flat" else (1, length), value)
        data = split_items({"pixels": pixels}, {"pixels": how})["image"][0]
        items.append(MultiModalFeature("image", number, f"image-{number}", PlaceholderRange(0, length), data))

    def embed(model: Any, modality: str, mm_kwargs: Any) -> list[torch.Tensor]:
        rows = mm_kwargs["pixels"]
        each = list(rows.split(4)) if isinstance(rows, torch.Tensor) and rows.dim() == 1 else list(rows)
        mixed = 0 * torch.cat(each).sum()  # zero, unless something is not finite
        return [(part + mixed)[:, None].expand(-1, 8) for part in each]

    hooks = SimpleNamespace(get_multimodal_embeddings=embed)
    encoders = EncoderRunner(hooks, None, 8, torch.float32, torch.device("cpu"))
    encoders.run(items)
    for item, value in ((items[0], 1.0), (items[2], 2.0)):
        assert torch.equal(encoders.output(item), torch.full((item.placeholder.num_embeds, 8), value))
    with pytest.raises(EncoderError, match="image 1: its embeddings hold NaN"):
        encoders.output(items[1])

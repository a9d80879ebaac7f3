"""A user's own names for items: whose they are, what they may stand in for, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import torch

from corellm.errors import InvalidParameterError, ItemNotCachedError, MediaError
from corellm.hookspecs import hookimpl
from corellm.multimodal import MultiModalFeature
from corellm.multimodal.processor import MultiModalProcessor
from corellm.multimodal.uuids import with_uuid_items
from tests.multimodal.toy import IMAGE, Toy, make, make_image


def ask(
    processor: MultiModalProcessor, images: Any, uuids: Any, salt: str | None = None, **kwargs: Any
) -> list[MultiModalFeature]:
    """A request's items."""
    count = len(images) if isinstance(images, list) else 1
    return processor.process([IMAGE] * count, {"image": images}, kwargs, {"image": uuids}, salt)[1]


def widths(features: list[MultiModalFeature]) -> list[int]:
    """The widths of the images that the tensors were made of."""
    return [int(feature.data["pixel_values"].data[0]) for feature in features]


def test_another_tenants_uuid_is_another_item() -> None:
    """Whatever each salt calls "x" is its own, also without a salt; none finds another's image, sent or only named."""
    processor = make(Toy())
    tenants: list[str | None] = [None, "a", "b"]
    first = [ask(processor, make_image(3 + i), "x", salt) for i, salt in enumerate(tenants)]
    assert [widths(features) for features in first] == [[3], [4], [5]]
    assert len({features[0].identifier for features in first}) == 3
    assert [widths(ask(processor, None, "x", salt)) for salt in tenants] == [[3], [4], [5]]
    with pytest.raises(ItemNotCachedError, match=r"uuid 'x' .* cache_salt"):
        ask(processor, None, "x", "c")


def test_the_same_bytes_of_another_tenant_are_another_item() -> None:
    """Nor can a tenant tell by the time it takes that another has sent the image before."""
    adapter = Toy()
    processor = make(adapter)
    _ = processor.profile
    before = adapter.processed
    found = {ask(processor, make_image(3), None, salt)[0].identifier for salt in (None, "a", "b", "a", "b")}
    assert (len(found), adapter.processed - before) == (3, 3)


def test_tenants_in_many_threads() -> None:
    """Each gets its own image under the name that all use, at whatever time it comes."""
    processor = make(Toy())
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(ask, processor, make_image(1 + i % 8), "x", f"tenant {i % 8}") for i in range(160)]
        assert [widths(job.result(timeout=600)) for job in jobs] == [[1 + i % 8] for i in range(160)]


@pytest.mark.parametrize("images", [None, [None], (None,)])
@pytest.mark.parametrize("uuids", ["x", ["x"], ("x",)])
def test_a_uuid_stands_in_for_media_sent_before(images: Any, uuids: Any) -> None:
    """In every form that one item may have; nothing is processed again."""
    adapter = Toy()
    processor = make(adapter)
    (sent,) = ask(processor, make_image(3), "x")
    before = adapter.processed
    (named,) = ask(processor, images, uuids)
    assert (named.identifier, named.data, named.placeholder) == (sent.identifier, sent.data, sent.placeholder)
    assert adapter.processed == before


def test_named_and_sent_items_of_one_request() -> None:
    """Items stay in order; a name may be that of an item of the same request, before or after."""
    processor = make(Toy())
    ask(processor, make_image(3), "x")
    assert widths(ask(processor, [None, make_image(4)], ["x", None])) == [3, 4]
    assert widths(ask(processor, [None, make_image(5), None], ["y", "y", "x"])) == [5, 5, 3]
    assert widths(processor.process([IMAGE] * 2, {"image": None}, None, {"image": ["x", "y"]})[1]) == [3, 5]


def test_a_name_waits_for_the_item_that_is_being_processed() -> None:
    """A request that names what another one is just bringing gets it."""
    processing, go_on = Event(), Event()

    class Slow(Toy):
        @hookimpl
        def call_hf_processor(self, mm_data: Mapping[str, Any]) -> Mapping[str, Any]:
            if mm_data["image"][0].width == 3:
                processing.set()
                assert go_on.wait(600)
            return super().call_hf_processor(mm_data)

    processor = make(Slow())
    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(ask, processor, make_image(3), "x")
        assert processing.wait(600)
        named = pool.submit(ask, processor, None, "x")
        go_on.set()
        assert widths(sent.result(600)) == widths(named.result(600)) == [3]


def test_what_is_not_cached_has_to_be_sent() -> None:
    """Never seen, evicted, seen with other arguments, or nothing is cached at all; the item is named."""
    processor = make(Toy())
    ask(processor, make_image(3), "x")
    with pytest.raises(ItemNotCachedError, match=r"^image 1: .* 'z'") as caught:
        ask(processor, [None, None], ["x", "z"])
    assert (caught.value.modality, caught.value.item, caught.value.status) == ("image", 1, 400)
    with pytest.raises(ItemNotCachedError, match="these processor arguments"):
        ask(processor, None, "x", red=1)
    processor.cache.clear()
    with pytest.raises(ItemNotCachedError):
        ask(processor, None, "x")
    assert widths(ask(processor, make_image(3), "x")) == [3]
    forgetful = make(Toy(), mm_processor_cache_gb=0)
    ask(forgetful, make_image(3), "x")
    with pytest.raises(ItemNotCachedError):
        ask(forgetful, None, "x")


def test_an_adapter_that_needs_the_media_says_so() -> None:
    """The tensors are there, the image is not."""

    class Looking(Toy):
        @hookimpl
        def get_prompt_updates(self, mm_items: Any, out_mm_kwargs: Mapping[str, Any]) -> Any:
            assert mm_items["image"].num_embeddings(0) is None
            mm_items["image"].get(0)
            return super().get_prompt_updates(out_mm_kwargs)

    processor = make(Looking())
    ask(processor, make_image(3), "x")
    with pytest.raises(ItemNotCachedError, match="image 0: "):
        ask(processor, None, "x")


@pytest.mark.parametrize(
    ("data", "uuids", "message"),
    [
        ({"image": make_image(2)}, {"image": ["a", "b"]}, r"\['image'\] has 2 ids"),
        ({"image": [make_image(2)]}, {"image": []}, r"\['image'\] has 0 ids for 1 items"),
        ({"image": [None]}, {"image": ["a", "b"]}, r"\['image'\] has 2 ids for 1 items"),
        (
            {"image": make_image(2)},
            {"image": "a", "video": "b"},
            r"\['video'\] names nothing: multi_modal_data has image",
        ),
        ({"image": make_image(2)}, {"images": "a"}, r"\['images'\] names nothing: multi_modal_data has image"),
        ({}, {"image": "a"}, r"\['image'\] names nothing: .*no items"),
        ({"image": []}, {"image": "a"}, "no items"),
        ({"image": make_image(2)}, {"image": 5}, "must hold strings"),
        ({"image": make_image(2)}, {"image": ""}, "empty string"),
    ],
)  # fmt: skip
def test_uuids_that_fit_no_item_are_refused(data: Any, uuids: Any, message: str) -> None:
    """Before any image is opened."""
    with pytest.raises(InvalidParameterError, match=message) as caught:
        make(Toy()).process([IMAGE], data, None, uuids)
    assert caught.value.param == "multi_modal_uuids"


def test_no_names_are_no_names() -> None:
    """None for a modality, there or not; an empty list for a modality that has no items."""
    processor = make(Toy())
    for uuids in ({"image": None}, {"video": None}, {"image": [None], "video": []}):
        assert len(processor.process([IMAGE], {"image": make_image(2)}, None, uuids)[1]) == 1
    assert processor.process([1], {"image": None}, None, {"image": None})[0] == [1]


def test_none_without_a_name_and_embeddings_by_name_are_refused() -> None:
    """An item is its media or its name; embeddings are not kept, so they have to come. A name beside them is theirs."""
    processor = make(Toy())
    ask(processor, make_image(2), "x")
    with pytest.raises(MediaError, match="image 1: None"):
        ask(processor, [None, None], ["x", None])
    with pytest.raises(MediaError, match="image 0: None"):
        ask(processor, [None], None)
    with pytest.raises(ValueError, match=r"image 0: embeddings: .* torch\.Tensor"):
        processor.process([IMAGE], {"image_embeds": [None]}, None, {"image": "x"})
    both = {"image": None, "image_embeds": torch.zeros(1, 2, 8)}
    assert processor.parse(with_uuid_items(both, {"image": ["x"]}))["image"].num_embeddings(0) == 2

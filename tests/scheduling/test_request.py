"""Requests, their block hashes, and the queue they wait in."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corellm.multimodal.inputs import MultiModalFeature
from corellm.scheduling.block_hash import extend_block_hashes, hash_block
from corellm.scheduling.request import FINISH_REASONS, Request, RequestStatus
from corellm.scheduling.request_queue import RequestQueue
from tests.scheduling.fake_worker import EOS, make_feature, make_request


@pytest.mark.parametrize(
    ("sampling", "tokens", "status", "stop_reason"),
    [
        ({"max_tokens": 9}, [5, 6], None, None),
        ({"max_tokens": 9}, [5, EOS], "FINISHED_STOPPED", None),
        ({"max_tokens": 9, "ignore_eos": True}, [5, EOS], None, None),
        ({"max_tokens": 9, "stop_token_ids": [7]}, [7], "FINISHED_STOPPED", 7),
        ({"max_tokens": 9, "stop_token_ids": [EOS]}, [EOS], "FINISHED_STOPPED", None),
        ({"max_tokens": 9, "stop_token_ids": [EOS], "ignore_eos": True}, [EOS], "FINISHED_STOPPED", EOS),
        ({"max_tokens": 2}, [5, 6], "FINISHED_LENGTH", None),
        ({"max_tokens": 2}, [5, EOS], "FINISHED_STOPPED", None),
        ({"max_tokens": None}, [5, 6, 5], None, None),
        ({"max_tokens": None}, [5, 6, 5, 6], "FINISHED_LENGTH", None),  # 4 prompt tokens + 4 = max_total_tokens
        ({"max_tokens": 9, "min_tokens": 2}, [EOS], None, None),
        ({"max_tokens": 9, "min_tokens": 2}, [5, EOS], "FINISHED_STOPPED", None),
        ({"max_tokens": 9, "min_tokens": 2, "stop_token_ids": [7]}, [7], None, None),
        ({"max_tokens": 2, "min_tokens": 2}, [5, 6], "FINISHED_LENGTH", None),
        ({"max_tokens": 9, "min_tokens": 8}, [EOS, EOS, EOS, EOS], "FINISHED_LENGTH", None),
    ],
)
def test_what_ends_a_completion(
    sampling: dict[str, Any], tokens: list[int], status: str | None, stop_reason: int | None
) -> None:
    """Each stop condition ends a completion exactly at its token, and `min_tokens` holds back stop tokens only."""
    request = make_request("r", [1, 2, 3, 4], **sampling)
    request.limit_total_tokens(8)
    for token in tokens[:-1]:
        assert not request.append_token(token)
    assert request.append_token(tokens[-1]) == (status is not None)
    assert request.status.name == (status or "WAITING")
    assert request.stop_reason == stop_reason
    assert request.num_tokens == 4 + len(tokens)


def test_finish_reasons_cover_exactly_the_final_statuses() -> None:
    """Every final status, and no other, has the reason that callers see."""
    assert {status.name: reason for status, reason in FINISH_REASONS.items()} == {
        "FINISHED_STOPPED": "stop",
        "FINISHED_LENGTH": "length",
        "FINISHED_ABORTED": "abort",
        "FINISHED_IGNORED": "ignored",
        "FINISHED_ERROR": "error",
    }
    for status in RequestStatus:
        assert status.is_finished == status.name.startswith("FINISHED")


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.lists(st.integers(0, 9), max_size=9),
    st.integers(0, 18),
    st.integers(0, 18),
)
def test_token_ids_is_a_slice_of_prompt_and_output(prompt: list[int], output: list[int], start: int, stop: int) -> None:
    """Slices across the border between prompt and output equal slices of their concatenation."""
    request = make_request("r", prompt)
    for token in output:
        request.append_token(token)
    start, stop = sorted((min(start, request.num_tokens), min(stop, request.num_tokens)))
    assert request.token_ids(start, stop) == (prompt + output)[start:stop]


def hashes(
    prompt: list[int],
    features: list[MultiModalFeature] | None = None,
    salt: str | None = None,
    block_size: int = 4,
) -> list[bytes]:
    """Hashes of all full blocks of a prompt."""
    request = make_request("r", prompt, features or [], cache_salt=salt)
    extend_block_hashes(request, block_size, len(prompt) // block_size)
    return request.block_hashes


def test_hashes_depend_on_everything_the_kv_depends_on_and_carry_it_on() -> None:
    """A token, an item, an item's position and the salt each change their block's hash and all later ones."""
    prompt = list(range(12))
    plain = hashes(prompt)
    assert plain == hashes(prompt)
    assert len(set(plain)) == 3
    changed_token = hashes([*prompt[:5], 99, *prompt[6:]])
    assert [a == b for a, b in zip(plain, changed_token, strict=True)] == [True, False, False]
    with_item = hashes(prompt, [make_feature("cat", 5, 2)])
    assert [a == b for a, b in zip(plain, with_item, strict=True)] == [True, False, False]
    variants = [
        plain,
        with_item,
        hashes(prompt, [make_feature("dog", 5, 2)]),
        hashes(prompt, [make_feature("cat", 6, 2)]),
        hashes(prompt, salt="tenant"),
        hashes(prompt, salt=""),
        hashes(prompt, [make_feature("cat", 5, 1), make_feature("dog", 6, 1)]),
        hashes(prompt, [make_feature("catdog", 5, 2)]),
    ]
    assert len({variant[-1] for variant in variants}) == len(variants)


def test_every_block_that_an_item_overlaps_has_it_in_its_hash() -> None:
    """An item over blocks 1 and 2 of 4 is in both; equal tokens with another item differ from block 1 on."""
    prompt = [7] * 16
    cat, dog = (hashes(prompt, [make_feature(name, 6, 4)]) for name in ("cat", "dog"))
    assert [a == b for a, b in zip(cat, dog, strict=True)] == [True, False, False, False]
    parent = hashes(prompt)[0]
    # The item ends before block 3: apart from its parent, that block is a plain one.
    assert cat[3] == hash_block(cat[2], [7] * 4)
    assert cat[1] != hash_block(parent, [7] * 4)


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_extra_keys_never_run_together(left: list[bytes], right: list[bytes]) -> None:
    """Different lists of extra keys give different hashes, even where their bytes joined are equal."""
    assert (hash_block(b"", [1], left) == hash_block(b"", [1], right)) == (left == right)


def test_hashes_grow_with_the_output_without_being_computed_again() -> None:
    """A block filled by generated tokens hashes like the same tokens in a prompt."""
    request = make_request("r", [1, 2, 3, 4, 5])
    extend_block_hashes(request, 4, 1)
    first = request.block_hashes[0]
    for token in (6, 7, 8):
        request.append_token(token)
    extend_block_hashes(request, 4, 2)
    assert request.block_hashes == hashes([1, 2, 3, 4, 5, 6, 7, 8])
    assert request.block_hashes[0] is first


def test_features_are_sorted_by_their_place_in_the_prompt() -> None:
    """The scheduler walks features in prompt order, whatever order the modalities came in."""
    request = make_request("r", [1] * 9, [make_feature("b", 5, 2), make_feature("a", 1, 2)])
    assert [feature.identifier for feature in request.features] == ["a", "b"]


def ranked(name: str, rank: tuple[float, int], arrival_time: float = 0.0) -> Request:
    """A request as the scheduler would queue it."""
    request = make_request(name, [1], arrival_time=arrival_time)
    request.rank = rank
    return request


@given(st.randoms(use_true_random=False), st.integers(1, 200))
def test_queue_equals_a_sorted_list(rng: random.Random, num_operations: int) -> None:
    """Any sequence of push, pop and remove gives what a sorted list gives; husks never outgrow the live entries."""
    queue, model = RequestQueue(), list[Request]()
    for number in range(num_operations):
        action = rng.choice(["push", "push", "pop", "remove"])
        if action == "push" or not model:
            request = ranked(str(number), (rng.randint(0, 2), number))
            queue.push(request)
            model.append(request)
        elif action == "pop":
            request = min(model, key=lambda other: other.rank)
            assert queue.peek() is request
            assert queue.pop() is request
            model.remove(request)
        else:
            request = rng.choice(model)
            queue.remove(request)
            model.remove(request)
        assert len(queue) == len(model)
    assert [queue.pop() for _ in range(len(model))] == sorted(model, key=lambda other: other.rank)


def test_queue_survives_an_id_that_is_used_again() -> None:
    """What a removed request left behind is not mistaken for a new one of the same id."""
    queue = RequestQueue()
    old, new = ranked("a", (0, 0)), ranked("a", (0, 5))
    queue.push(old)
    queue.remove(old)
    queue.push(ranked("b", (0, 3)))
    queue.push(new)
    assert [queue.pop().request_id for _ in range(2)] == ["b", "a"]


def test_queue_forgets_removed_requests() -> None:
    """Aborting every waiting request frees its memory, but for a bounded rest."""
    queue = RequestQueue()
    requests = [ranked(str(number), (0, number)) for number in range(5000)]
    for request in requests:
        queue.push(request)
    for request in requests[1:]:
        queue.remove(request)
    assert queue.peek() is requests[0]
    assert len(queue._heap) < 100

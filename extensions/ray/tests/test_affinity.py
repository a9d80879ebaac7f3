"""Which replica a request goes to: by what it has in common with others, within a bound."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from corellm.multimodal.inputs import PlaceholderRange
from corellm.serving import ProcessedPrompt
from corellm_ray.affinity import PREFIX_TOKENS, key_of, ranked

NAMES = [f"replica{number}" for number in range(5)]


def prompt_of(*tokens: int, items: tuple[tuple[str, int], ...] = (), salt: str | None = None) -> ProcessedPrompt:
    """A prompt with items of these identities at these places."""
    features = [
        SimpleNamespace(identifier=identifier, placeholder=PlaceholderRange(offset, 4)) for identifier, offset in items
    ]
    return ProcessedPrompt(None, list(tokens), features, salt)


SYSTEM = range(100, 100 + PREFIX_TOKENS)


def test_a_question_does_not_change_the_key_and_a_system_prompt_does() -> None:
    assert key_of(prompt_of(*SYSTEM, 1, 2, 3)) == key_of(prompt_of(*SYSTEM, 9))
    assert key_of(prompt_of(*SYSTEM, 1)) != key_of(prompt_of(*reversed(SYSTEM), 1))


def test_the_first_item_is_part_of_the_key_and_what_follows_it_is_not() -> None:
    asked = prompt_of(1, 2, 50, 50, 50, 50, 7, items=(("a", 2),))
    assert key_of(asked) == key_of(prompt_of(1, 2, 50, 50, 50, 50, 8, 9, items=(("a", 2), ("b", 6))))
    assert key_of(asked) != key_of(prompt_of(1, 2, 50, 50, 50, 50, 7, items=(("b", 2),)))


def test_clients_with_other_keys_share_no_replica_on_purpose() -> None:
    asked = prompt_of(*SYSTEM)
    assert key_of(asked) != key_of(replace(asked, cache_salt="other"))


def test_a_replica_that_goes_moves_its_own_keys_only() -> None:
    loads = dict.fromkeys(NAMES, 0)
    keys = [str(number) for number in range(500)]
    before = {key: ranked(key, loads)[0] for key in keys}
    del loads[NAMES[2]]
    after = {key: ranked(key, loads)[0] for key in keys}
    moved = {key for key in keys if before[key] != after[key]}
    assert moved == {key for key in keys if before[key] == NAMES[2]}
    assert set(Counter(before.values())) == set(NAMES)


@pytest.mark.parametrize("seed", range(3))
def test_no_replica_has_more_than_its_share(seed: int) -> None:
    """Of one key alone, and of four: they fill the replicas in each key's order."""
    choices, loads = random.Random(seed), dict.fromkeys(NAMES, 0)
    keys = ["same"] * 300 if seed == 0 else [str(choices.randrange(4)) for _ in range(300)]
    for key in keys:
        loads[ranked(key, loads)[0]] += 1
        assert max(loads.values()) <= 1.25 * sum(loads.values()) / len(loads) + 1
    assert len([load for load in loads.values() if load]) >= 4

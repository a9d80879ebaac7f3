"""Memory that a step frees is there for the next one, unless the user wants it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.system.allocated import needs_glibc

CODE = """
from corellm.system.allocator import keep_freed_memory, return_freed_memory
from tests.system.allocated import taken_from_the_system as taken
def use():
    return [bytearray(8 << 20) for _ in range(16)]

keep_freed_memory()
in_use = use()
most = taken()
del in_use
kept = taken()
in_use = use()
again = taken()
del in_use
return_freed_memory()
print(*(number >> 20 for number in (most, kept, again, taken())))
"""

HOLES = """
import sys
from corellm.system.allocator import return_large_blocks
from tests.system.allocated import taken_from_the_system as taken
if sys.argv[1:]:
    return_large_blocks()
bytearray(8 << 20)  # freed
blocks = [bytearray(8 << 20) for _ in range(16)]
before = taken()
del blocks[:-1]
print(before - taken() >> 20)
"""


def taken(**settings: str) -> list[int]:
    """MiB after taking 128, after freeing them, after taking them again, and after they were freed and returned."""
    done = subprocess.run([sys.executable, "-c", CODE], env={**os.environ, **settings}, capture_output=True, check=True)
    return [int(number) for number in done.stdout.split()]


@needs_glibc
def test_freed_memory_is_used_again() -> None:
    """Nothing more is taken from the system; after a load it goes back once."""
    most, kept, again, returned = taken()
    assert most == kept == again >= 128
    assert returned <= most - 128


@needs_glibc
@pytest.mark.parametrize("is_set", [True, False])
def test_large_blocks_go_back(is_set: bool) -> None:
    """Though one that is in use lies behind them: glibc by itself would keep them all."""
    command = [sys.executable, "-c", HOLES, *(["set"] if is_set else [])]
    returned = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert returned == (15 * 8 if is_set else 0)


@needs_glibc
def test_settings_of_the_user_stay() -> None:
    """What was freed is not kept."""
    most, kept, again, _ = taken(MALLOC_TRIM_THRESHOLD_="131072")
    assert kept <= most - 128
    assert again == most

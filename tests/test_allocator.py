"""Memory that a step frees is there for the next one, unless the user wants it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import resource, sys
from corellm.allocator import keep_freed_memory, return_freed_memory

def use():
    blocks = [bytearray(8 << 20) for _ in range(16)]

def faults(function):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    function()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
use()
again = faults(use)
return_freed_memory()
print(again, faults(use))
"""

HOLES = """
import sys
from corellm.allocator import return_large_blocks

def resident():
    return int(open("/proc/self/statm").read().split()[1]) >> 8

if sys.argv[1:]:
    return_large_blocks()
bytearray(8 << 20)  # freed
blocks = [bytearray(8 << 20) for _ in range(16)]
before = resident()
del blocks[:-1]
print(before - resident())
"""

PAGES = (16 * 8 << 20) // 4096


def page_faults(**settings: str) -> tuple[int, int]:
    """Page faults of taking 128 MiB a second time, and again after it was returned."""
    done = subprocess.run([sys.executable, "-c", CODE], env={**os.environ, **settings}, capture_output=True, check=True)
    again, returned = map(int, done.stdout.split())
    return again, returned


@pytest.mark.skipif(not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc's allocator")
def test_freed_memory_is_used_again() -> None:
    """Without a page fault; after a load it goes back to the system once."""
    again, returned = page_faults()
    assert again < PAGES / 100
    assert returned > PAGES / 2


@pytest.mark.skipif(not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc's allocator")
@pytest.mark.parametrize("is_set", [True, False])
def test_large_blocks_go_back(is_set: bool) -> None:
    """Though one that is in use lies behind them: glibc by itself would keep them all."""
    command = [sys.executable, "-c", HOLES, *(["set"] if is_set else [])]
    returned = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert returned > 110 if is_set else returned < 10


@pytest.mark.skipif(not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc's allocator")
def test_settings_of_the_user_stay() -> None:
    again, _ = page_faults(MALLOC_TRIM_THRESHOLD_="131072")
    assert again > PAGES / 2

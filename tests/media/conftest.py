"""A pool of decoders for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corellm.media.pool import MediaPool


@pytest.fixture(scope="session")
def media_pool() -> Iterator[MediaPool]:
    """Two children with time enough on a busy machine."""
    pool = MediaPool(2, 60.0, "corellm_media.worker")
    yield pool
    pool.close()

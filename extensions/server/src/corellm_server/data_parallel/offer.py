"""Several engines as what `corellm serve` may have behind it. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from corellm.server_offers import EngineOffer
from corellm_server.options import DataParallelOptions

if TYPE_CHECKING:
    from corellm.serving import EngineClient


@contextmanager
def _opened(options: DataParallelOptions, engine_args: Mapping[str, Any]) -> Iterator[EngineClient]:
    from corellm_server.data_parallel.client import DataParallelLLM

    with closing(DataParallelLLM(**engine_args, **asdict(options))) as llm:
        yield llm


OFFER = EngineOffer("several engines on this machine", DataParallelOptions, "data_parallel_size", _opened)
"""What `corellm serve` and `corellm batch` have by themselves."""

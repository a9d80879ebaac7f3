"""Several engines as what `corellm serve` may have behind it, of one model or of several. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from corellm_server.offers import EngineOffer, WantedEngine
from corellm_server.options import DataParallelOptions

if TYPE_CHECKING:
    from corellm.serving import EngineClient


@contextmanager
def _opened(wanted: Sequence[WantedEngine]) -> Iterator[list[EngineClient]]:
    sizes = [one.options.data_parallel_size for one in wanted]
    with ExitStack() as stack:
        if sizes == [1]:
            from corellm.serving import ProcessLLM

            yield [stack.enter_context(closing(ProcessLLM(**wanted[0].engine_args)))]
            return
        from corellm_server.data_parallel.client import DataParallelLLM
        from corellm_server.data_parallel.division import shares_of

        shares = iter(shares_of(sum(sizes)))
        clients: list[EngineClient] = []
        for one, size in zip(wanted, sizes, strict=True):
            own = None if len(wanted) == 1 else [next(shares) for _ in range(size)]
            with one.named():
                llm = DataParallelLLM(**one.engine_args, **asdict(one.options), shares=own)
            clients.append(stack.enter_context(closing(llm)))
        yield clients


OFFER = EngineOffer("several engines on this machine", DataParallelOptions, "data_parallel_size", _opened)
"""What `corellm serve` and `corellm batch` have by themselves."""

"""What corellm calls of this distribution. Imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.config import ModelConfig
    from corellm.llm import LLM
    from corellm_pooling.calls import PooledCalls
    from corellm_pooling.use import PoolingUse


class Pooling:
    """Pooling as a use of a model, the calls of `LLM` for it, and `corellm embed`."""

    @hookimpl(tryfirst=True)  # before strangers: the first to register a name has it
    def register_commands(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the command."""
        from corellm_pooling.commands import embed

        embed.add_parser(subparsers)

    @hookimpl
    def offer_use(self, config: ModelConfig, path: Path, architectures: Sequence[str]) -> PoolingUse | None:
        """Return how a checkpoint is pooled, if it is."""
        from corellm_pooling.use import use_of

        return use_of(config, path, architectures)

    @hookimpl
    def offer_calls(self, llm: LLM) -> PooledCalls:
        """Return `encode`, `embed`, `classify`, `reward` and `score`."""
        from corellm_pooling.calls import PooledCalls

        return PooledCalls(llm)
